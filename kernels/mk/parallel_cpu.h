// One thread of control does what the threads of a block share.
#pragma once
#include "parallel.h"

namespace mk {

static_assert(kSharedWords * sizeof(u32) == sizeof(Scratch::words));

inline u32* shared_words(Block& block) { return block.scratch->words; }
inline void set_bits(u32* word, u32 bits) { *word |= bits; }
inline i32 count_bits(u32 bits) { return __builtin_popcount(bits); }

template <class F> void for_each(Block& block, i32 n, i32 bytes, F f) {
  block.machine->charge_pass(block, i64(n) * bytes);
  for (i32 i = 0; i < n; ++i) f(i);
}

// The rows of one task lie in one rank's memory: the cost model goes by the first.
template <class Source>
void gather(Block& block, i32 rows, i32 cols, Source source, bf16* destination, i64 stride) {
  const bool payload = block.machine->payload;
  // Half of every row is read at the start and half at the end, as with other transfers.
  const size_t half = size_t(cols / 2), rest = size_t(cols) - half;
  std::vector<bf16> early;
  if (payload) {
    for (i32 i = 0; i < rows; ++i) poison(destination + i * stride, cols);
    early.reserve(size_t(rows) * half);
    for (i32 i = 0; i < rows; ++i) early.insert(early.end(), source(i), source(i) + half);
  }
  Traffic traffic;
  traffic.sources = traffic.destinations = 1;
  traffic.bytes = i64(rows) * cols * i64(sizeof(bf16));
  traffic.source[0] = source(0);
  traffic.destination[0] = destination;
  block.machine->charge_move(block, traffic);
  if (payload)
    for (i32 i = 0; i < rows; ++i) {
      bf16* row = destination + i * stride;
      std::memcpy(row, early.data() + size_t(i) * half, half * sizeof(bf16));
      std::memcpy(row + half, source(i) + half, rest * sizeof(bf16));
    }
}

}  // namespace mk
