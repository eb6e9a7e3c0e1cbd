// Work that all threads of a block share, element by element, and rows that lie anywhere. A platform provides:
//   for_each(block, n, bytes, f)  f(i) for every i < n, by the threads of the block in any order; `bytes` is what each
//                                 moves, for the cost model. Nothing is waited for: sync() before others read the result
//   shared_words(block)           kSharedWords that all threads of the block share, until its next tile
//   set_bits(word, bits), count_bits(bits)
//                                 the first is atomic among the threads of the block
//   gather(block, rows, cols, source, destination, stride)
//                                 `cols` elements, a multiple of 8, from source(i) to destination + i * stride
#pragma once
#include "tiles.h"

namespace mk {

constexpr i32 kLanes = 256;            // at most so many threads have a part each
constexpr i32 kSharedWords = 32 << 10;  // 32-bit words
constexpr i32 kScanWords = kLanes + 16;

}  // namespace mk

#ifdef __CUDACC__
#include "parallel_cuda.h"
#else
#include "parallel_cpu.h"
#endif

namespace mk {

// Calls emit(i, sum of value(0) to value(i - 1)) for every i < n, and returns the sum of all. value(i) is asked for twice,
// before and while results are emitted, and must not change. Uses the first kScanWords shared words; syncs first and last.
template <class Value, class Emit> i32 scan(Block& block, i32 n, Value value, Emit emit) {
  constexpr i32 kGroup = 16;  // lanes whose sums are added up once more, so that nobody adds up more than 32
  u32* sums = shared_words(block);
  u32* groups = sums + kLanes;
  const i32 each = ceil_div(n, kLanes), bytes = each * i32(sizeof(u32));
  const auto end = [&](i32 lane) { return n - lane * each < each ? n : (lane + 1) * each; };
  block.sync();
  for_each(block, kLanes, bytes, [&](i32 lane) {
    u32 sum = 0;
    for (i32 i = lane * each; i < end(lane); ++i) sum += u32(value(i));
    sums[lane] = sum;
  });
  block.sync();
  for_each(block, kLanes / kGroup, kGroup * i32(sizeof(u32)), [&](i32 group) {
    u32 sum = 0;
    for (i32 i = 0; i < kGroup; ++i) sum += sums[group * kGroup + i];
    groups[group] = sum;
  });
  block.sync();
  for_each(block, kLanes, 2 * bytes, [&](i32 lane) {
    u32 sum = 0;
    for (i32 group = 0; group < lane / kGroup; ++group) sum += groups[group];
    for (i32 i = lane / kGroup * kGroup; i < lane; ++i) sum += sums[i];
    for (i32 i = lane * each; i < end(lane); ++i) {
      const u32 own = u32(value(i));
      emit(i, i32(sum));
      sum += own;
    }
  });
  u32 total = 0;
  for (i32 group = 0; group < kLanes / kGroup; ++group) total += groups[group];
  block.sync();
  return i32(total);
}

}  // namespace mk
