// A block on a GPU: 256 threads, one block on each SM. Every order and scope is one PTX instruction, so that the machine
// code can be checked against the protocol.
#pragma once
#include "platform.h"

#define MK_KERNEL(name, Params, FIELDS, FLAGS, body, Sizes)                  \
  extern "C" __global__ void __launch_bounds__(mk::kThreads, 1)             \
  name(const __grid_constant__ mk::Params params) {                         \
    mk::Block block(params);                                                \
    mk::body(block, params);                                                \
  }

namespace mk {

constexpr i32 kThreads = 256;
constexpr u64 kPollsPerCheck = 64;  // the abort record may lie in host memory: too far to look at with every poll

// A poll crosses the chip, and polls of many blocks hold up copy engines and each other. What comes within the first polls
// is met at once; later, a pause costs little beside what was waited.
constexpr u64 kPollsAtOnce = 16, kPollsInShortWait = 64;
constexpr u32 kShortPauseNs = 200, kLongPauseNs = 1000;

__device__ __forceinline__ u64 global_address(const void* pointer) { return __cvta_generic_to_global(pointer); }

struct Block {
  i32 index;
  i32 count;
  // Rarely used, so in shared memory: the registers belong to the accumulators.
  struct Shared {
    u64 broadcast[2];
    u64 wait_began_ns;
    u32 role;
  };
  Shared& shared;
  u32& role;  // Role that reports and the trace name

  template <class Params>
  __device__ __forceinline__ explicit Block(const Params& params)
      : index(i32(blockIdx.x)),
        count(i32(gridDim.x)),
        shared(shared_memory()),
        role(shared.role),
        abort_record(reinterpret_cast<AbortRecord*>(params.abort_record)),
        deadline_ns(params.deadline_ns),
        rank(u32(params.rank)) {}

  __device__ __forceinline__ bool leader() const { return threadIdx.x == 0; }
  __device__ __forceinline__ void sync() { __syncthreads(); }

  // The leader's value, for every thread. Two slots in turn: who writes one again has passed the barrier that all
  // readers of it reached only after they had read.
  template <class T> __device__ __forceinline__ T broadcast(T value) {
    static_assert(sizeof(T) <= sizeof(u64));
    T* place = reinterpret_cast<T*>(&shared.broadcast[turn ^= 1]);
    if (leader()) *place = value;
    __syncthreads();
    return *place;
  }

  AbortRecord* abort_record;
  u64 deadline_ns;
  u32 rank;
  u32 turn = 0;

 private:
  __device__ __forceinline__ static Shared& shared_memory() {
    __shared__ Shared memory;
    return memory;
  }
};

__device__ __forceinline__ u64 now_ns(Block&) {
  u64 ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// These two mark time for the simulator.
__device__ __forceinline__ void charge_role_switch(Block&) {}
template <Scope scope> __device__ __forceinline__ void arrive(Block&, const u64*) {}

#define MK_LOAD(order, scope) \
  asm volatile("ld." order "." scope ".global.u64 %0, [%1];" : "=l"(value) : "l"(global_address(word)) : "memory")
template <Order order, Scope scope> __device__ __forceinline__ u64 load(Block&, const u64* word) {
  static_assert(order == Order::relaxed || order == Order::acquire);
  u64 value;
  if constexpr (scope == Scope::system) {
    if constexpr (order == Order::acquire) MK_LOAD("acquire", "sys");
    else MK_LOAD("relaxed", "sys");
  } else {
    if constexpr (order == Order::acquire) MK_LOAD("acquire", "gpu");
    else MK_LOAD("relaxed", "gpu");
  }
  return value;
}
#undef MK_LOAD

// By the whole block: the first of `count` <= 64 words below `at_least`, or `count`; the leader also gets what it holds.
// A warp looks at all of them at once; what its lanes acquire is visible to all threads after the broadcast.
template <Order order, Scope scope>
__device__ __forceinline__ i32 first_below(Block& block, const u64* words, i32 count, u64 at_least, u64& seen) {
  constexpr u32 kAll = 0xffffffff;
  i32 first = count;
  if (threadIdx.x < 32) {
    for (i32 base = 0; base < count && first == count; base += 32) {
      const i32 i = base + i32(threadIdx.x);
      const u64 value = i < count ? load<order, scope>(block, words + i) : at_least;
      if (const u32 below = __ballot_sync(kAll, value < at_least)) {
        const i32 lane = __ffs(below) - 1;
        seen = __shfl_sync(kAll, value, lane);
        first = base + lane;
      }
    }
  }
  return block.broadcast(first);
}

#define MK_STORE(order, scope) \
  asm volatile("st." order "." scope ".global.u64 [%0], %1;" ::"l"(global_address(word)), "l"(value) : "memory")
template <Order order, Scope scope> __device__ __forceinline__ void store(Block&, u64* word, u64 value) {
  static_assert(order == Order::relaxed || order == Order::release);
  if constexpr (scope == Scope::system) {
    if constexpr (order == Order::release) MK_STORE("release", "sys");
    else MK_STORE("relaxed", "sys");
  } else {
    if constexpr (order == Order::release) MK_STORE("release", "gpu");
    else MK_STORE("relaxed", "gpu");
  }
}
#undef MK_STORE

// By the whole block: each lane of a warp stores one of `count` <= 32 words, so that they wait for their release together.
template <Order order, Scope scope, class Word>
__device__ __forceinline__ void store_each(Block& block, i32 count, Word word, u64 value) {
  if (i32(threadIdx.x) < count) store<order, scope>(block, word(i32(threadIdx.x)), value);
}

#define MK_ATOMIC(order, scope, operation, ...) \
  asm volatile("atom." order "." scope ".global." operation ";" : "=l"(old) : "l"(global_address(word)), __VA_ARGS__ : "memory")
#define MK_ATOMIC_ORDERS(scope, operation, ...)                                                  \
  if constexpr (order == Order::acq_rel) MK_ATOMIC("acq_rel", scope, operation, __VA_ARGS__);    \
  else if constexpr (order == Order::acquire) MK_ATOMIC("acquire", scope, operation, __VA_ARGS__); \
  else if constexpr (order == Order::release) MK_ATOMIC("release", scope, operation, __VA_ARGS__); \
  else MK_ATOMIC("relaxed", scope, operation, __VA_ARGS__)

// One attempt; `expected` becomes what was seen.
template <Order order, Scope scope>
__device__ __forceinline__ bool compare_exchange(Block&, u64* word, u64& expected, u64 desired) {
  u64 old;
  if constexpr (scope == Scope::system) {
    MK_ATOMIC_ORDERS("sys", "cas.b64 %0, [%1], %2, %3", "l"(expected), "l"(desired));
  } else {
    MK_ATOMIC_ORDERS("gpu", "cas.b64 %0, [%1], %2, %3", "l"(expected), "l"(desired));
  }
  const bool swapped = old == expected;
  expected = old;
  return swapped;
}

template <Order order, Scope scope> __device__ __forceinline__ u64 fetch_add(Block&, u64* word, u64 n) {
  u64 old;
  if constexpr (scope == Scope::system) {
    MK_ATOMIC_ORDERS("sys", "add.u64 %0, [%1], %2", "l"(n));
  } else {
    MK_ATOMIC_ORDERS("gpu", "add.u64 %0, [%1], %2", "l"(n));
  }
  return old;
}
#undef MK_ATOMIC_ORDERS
#undef MK_ATOMIC

__device__ __forceinline__ u32 abort_state(const AbortRecord* record) {
  u32 state;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(state) : "l"(global_address(&record->set)) : "memory");
  return state;
}

// By all threads of the block: they must leave together.
__device__ __forceinline__ bool aborted(Block& block) {
  return block.broadcast(block.leader() ? abort_state(block.abort_record) : 0u) != 0;
}

// By the whole block, between looks at several words, none of which is waited for alone.
__device__ __forceinline__ void rest(Block&) { __nanosleep(kLongPauseNs); }

// By the leader, between two looks at a word. False: the wait is given up, because others did or because it took too
// long; then the first to say so leaves the record.
__device__ __forceinline__ bool idle(Block& block, const u64*, u64 expected, u64 seen, u32 flag, u32 index, u64& attempts) {
  if (attempts++ == 0) block.shared.wait_began_ns = now_ns(block);
  if (attempts > kPollsAtOnce) __nanosleep(attempts > kPollsInShortWait ? kLongPauseNs : kShortPauseNs);
  if (attempts % kPollsPerCheck != 0) return true;
  AbortRecord* record = block.abort_record;
  if (abort_state(record) != 0) return false;
  if (now_ns(block) - block.shared.wait_began_ns < block.deadline_ns) return true;
  u32 before;
  asm volatile("atom.relaxed.sys.global.cas.b32 %0, [%1], 0, 1;" : "=r"(before) : "l"(global_address(&record->set)) : "memory");
  if (before == 0) {
    record->expected = expected;
    record->seen = seen;
    record->rank = block.rank;
    record->block = u32(block.index);
    record->role = block.role;
    record->flag = flag;
    record->index = index;
  }
  return false;
}

}  // namespace mk
