// A block on the CPU: one thread of control, so its leader is itself and sync() has nobody to wait for. Data races and
// missing order are found by the simulator and by ThreadSanitizer on this same code.
#pragma once
#include <atomic>
#include <cstring>

#include "machine.h"

#include "export.h"

// Entry point of a kernel, and what Python must know of it.
#define MK_KERNEL(name, Params, FIELDS, FLAGS, body, Sizes)                                                            \
  MK_EXPORT_STRUCT(Params, FIELDS)                                                                                     \
  MK_EXPORT_NAMES(flags, FLAGS)                                                                                        \
  extern "C" void mk_kernel(mk::Block& block, const void* params) {                                                    \
    mk::body(block, *static_cast<const mk::Params*>(params));                                                          \
  }                                                                                                                    \
  extern "C" long long mk_control_bytes(const void* params) {                                                          \
    return mk::Sizes{*static_cast<const mk::Params*>(params)}.control_bytes();                                         \
  }                                                                                                                    \
  extern "C" long long mk_network_control_bytes(const void* params) {                                                  \
    return mk::Sizes{*static_cast<const mk::Params*>(params)}.network_control_bytes();                                 \
  }

namespace mk {

constexpr i32 kMostHeadDim = 128;

// What a tile of queries has seen so far, and the keys that it is looking at.
struct AttentionScratch {
  float highest[kTileM], total[kTileM];
  float sum[kTileM * kMostHeadDim], keys[kTileM * kMostHeadDim];
};

struct alignas(64) Scratch {
  float accumulator[kTileElements];
  bf16 tile[kTileElements];
  AttentionScratch attention;
  u32 words[32 << 10];  // what threads of a block share: kSharedWords of parallel.h
};

// An asynchronous store of the tile in Scratch, or its addition, that has not been waited for.
struct TileStore {
  bf16* destination = nullptr;
  i64 stride = 0;  // elements
  i32 rows = 0, cols = 0;
  const i32* row_of = nullptr;
  bool add = false;

  bf16* row(i32 i) const { return destination + (row_of ? row_of[i] : i) * stride; }
};

struct Block {
  i32 index;
  i32 count;
  Machine* machine;
  void* context;  // the machine's own record of this block
  Scratch* scratch;
  u32 role = 0;      // Role that reports and the trace name
  TileStore unfinished_store = {};

  bool leader() const { return true; }
  void sync() {}
  template <class T> T broadcast(T value) { return value; }
};

inline u64 now_ns(Block& block) { return block.machine->now_ns(block); }
inline bool idle(Block& block, const u64* word, u64 expected, u64 seen, u32 flag, u32 index, u64& attempts) {
  return block.machine->idle(block, {word, expected, seen, block.role, flag, index}, attempts);
}
inline bool aborted(Block& block) { return block.machine->aborted(block); }
inline void rest(Block& block) { block.machine->rest(block); }
inline void charge_role_switch(Block& block) { block.machine->charge_role_switch(block); }

constexpr std::memory_order std_order(Order order) {
  switch (order) {
    case Order::acquire: return std::memory_order_acquire;
    case Order::release: return std::memory_order_release;
    case Order::acq_rel: return std::memory_order_acq_rel;
    default: return std::memory_order_relaxed;
  }
}

// The point in the simulator's time at which this block's next compare_exchange takes place.
template <Scope scope> void arrive(Block& block, const u64* word) { block.machine->before_access(block, word, 1, scope, true); }

template <Order order, Scope scope> u64 load(Block& block, const u64* word) {
  if (order != Order::relaxed) block.machine->before_access(block, word, 1, scope, false);
  return std::atomic_ref<u64>(*const_cast<u64*>(word)).load(std_order(order));
}

// By the whole block: the first of `count` words below `at_least` and what it holds, or `count`.
template <Order order, Scope scope> i32 first_below(Block& block, const u64* words, i32 count, u64 at_least, u64& seen) {
  block.machine->before_access(block, words, count, scope, false);
  for (i32 i = 0; i < count; ++i) {
    seen = std::atomic_ref<u64>(const_cast<u64&>(words[i])).load(std_order(order));
    if (seen < at_least) return i;
  }
  return count;
}

template <Order order, Scope scope> void store(Block& block, u64* word, u64 value) {
  block.machine->before_access(block, word, 1, scope, true);
  std::atomic_ref<u64>(*word).store(value, std_order(order));
  block.machine->after_write(block, word, scope);
}

// By the whole block, in the time of one store: word(0), word(1), ... become `value`. These are words of several ranks.
template <Order order, Scope scope, class Word> void store_each(Block& block, i32 count, Word word, u64 value) {
  for (i32 i = 0; i < count; ++i) {
    if (i == 0) block.machine->before_access(block, word(i), 1, scope, true);
    std::atomic_ref<u64>(*word(i)).store(value, std_order(order));
    block.machine->after_write(block, word(i), scope);
  }
}

template <Order order, Scope scope> u64 fetch_add(Block& block, u64* word, u64 n) {
  block.machine->before_access(block, word, 1, scope, true);
  return std::atomic_ref<u64>(*word).fetch_add(n, std_order(order));
}

// One attempt; `expected` becomes what was seen.
template <Order order, Scope scope> bool compare_exchange(Block&, u64* word, u64& expected, u64 desired) {
  return std::atomic_ref<u64>(*word).compare_exchange_strong(expected, desired, std_order(order), std::memory_order_relaxed);
}

}  // namespace mk
