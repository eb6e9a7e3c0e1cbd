// Do all blocks of all ranks fit on their GPUs at the same time? Every block comes to a meeting and waits there for the
// others, a bounded time. The dynamic shared memory of the launch is the audited kernel's, which makes a block as large.
//
// `complete` (a word per rank) and `given_up` lie in host memory that all ranks map. They are only stored to and loaded:
// a GPU's atomic operations on host memory need not be atomic for another GPU. A value is this round's when it equals
// `round`, so nothing is reset between rounds. `counts` lies in the rank's own GPU memory and starts with zeros.
using u32 = unsigned int;
using u64 = unsigned long long;

struct Counts {
  u32 resident;  // blocks that were there before any block of any rank left
  u32 met;       // blocks that saw all others
};

__device__ __forceinline__ u64 now_ns() {
  u64 ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__device__ __forceinline__ u64 load_acquire(const u64* word) {
  u64 value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(__cvta_generic_to_global(word)) : "memory");
  return value;
}

__device__ __forceinline__ void store_release(u64* word, u64 value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(word)), "l"(value) : "memory");
}

// By one warp. True if all ranks are complete before somebody gives up.
__device__ bool meet(u64* complete, u64* given_up, u32 ranks, u32 rank, u64 round, u64 deadline_ns, Counts* counts) {
  constexpr u32 kAll = 0xffffffff;
  const u64 begin = now_ns();
  const u32 lane = threadIdx.x;
  // A block that finds this took the place of one that left: it was not resident together with that one.
  if (__any_sync(kAll, load_acquire(given_up) == round)) return false;
  if (lane == 0 && atomicAdd(&counts->resident, 1) == gridDim.x - 1) store_release(complete + rank, round);
  while (true) {
    bool is_complete = true;
    for (u32 r = lane; r < ranks; r += 32) is_complete &= load_acquire(complete + r) == round;
    if (__all_sync(kAll, is_complete)) return true;
    const bool is_late = now_ns() - begin > deadline_ns;
    if (__any_sync(kAll, is_late || load_acquire(given_up) == round)) {
      if (lane == 0) store_release(given_up, round);
      return false;
    }
  }
}

extern "C" __global__ void residency_audit(u64* complete, u64* given_up, u32 ranks, u32 rank, u64 round, u64 deadline_ns,
                                           Counts* counts) {
  if (threadIdx.x < 32) {
    const bool has_met = meet(complete, given_up, ranks, rank, round, deadline_ns, counts);
    if (threadIdx.x == 0 && has_met) atomicAdd(&counts->met, 1);
  }
  __syncthreads();  // the whole block stays, with all its registers
}
