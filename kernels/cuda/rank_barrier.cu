// All ranks of a machine meet before a timed launch, so that its time is not that of whoever started late. One warp;
// `words`, one for each rank, lie in host memory that all ranks map, and hold the number of the last meeting. Bounded:
// after `deadline_ns` the warp leaves, and the launch behind it shows what is wrong.
using u32 = unsigned int;
using u64 = unsigned long long;

extern "C" __global__ void rank_barrier(u64* words, u32 ranks, u32 rank, u64 meeting, u64 deadline_ns) {
  u64 begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  if (threadIdx.x == 0)
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(words + rank)), "l"(meeting) : "memory");
  for (u32 r = threadIdx.x; r < ranks; r += blockDim.x) {
    u64 seen;
    do {
      asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(__cvta_generic_to_global(words + r)) : "memory");
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (seen < meeting && now - begin < deadline_ns);
  }
}
