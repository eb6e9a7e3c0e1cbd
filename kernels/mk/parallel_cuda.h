// What the threads of a CUDA block share. Shared words lie where the stages of the GEMM do, which are free between tiles.
#pragma once
#include "parallel.h"

namespace mk {

static_assert(kLanes <= kThreads && kSharedWords * sizeof(u32) <= kStages * kStageBytes);

__device__ __forceinline__ u32* shared_words(Block&) { return reinterpret_cast<u32*>(mk_shared); }
__device__ __forceinline__ void set_bits(u32* word, u32 bits) { atomicOr(word, bits); }
__device__ __forceinline__ i32 count_bits(u32 bits) { return __popc(bits); }

template <class F> __device__ __forceinline__ void for_each(Block&, i32 n, i32, F f) {
  for (i32 i = thread_index(); i < n; i += kThreads) f(i);
}

// A warp has a part of a row, so that where the row is has to be found once for many pieces; kAtOnce loads of each thread
// are in flight.
template <class Source>
__device__ __forceinline__ void gather(Block&, i32 rows, i32 cols, Source source, bf16* destination, i64 stride) {
  constexpr i32 kAtOnce = 8, kWarp = 32, kPart = kAtOnce * kWarp;
  const i32 pieces = cols / 8, parts = ceil_div(pieces, kPart);
  for (i32 item = thread_index() / kWarp; item < rows * parts; item += kThreads / kWarp) {
    const i32 row = item / parts, first = (item - row * parts) * kPart + thread_index() % kWarp;
    const bf16* from = source(row);
    bf16* to = destination + row * stride;
    Piece held[kAtOnce] = {};
#pragma unroll
    for (i32 i = 0; i < kAtOnce; ++i)
      if (first + i * kWarp < pieces) held[i] = load_piece(from + (first + i * kWarp) * 8);
#pragma unroll
    for (i32 i = 0; i < kAtOnce; ++i)
      if (first + i * kWarp < pieces) store_piece(to + (first + i * kWarp) * 8, held[i]);
  }
}

}  // namespace mk
