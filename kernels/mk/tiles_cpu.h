// Tiles in plain loops that the compiler vectorises. With the simulator a transfer poisons its destination when it starts
// and is complete only once its time has passed, so that who reads too early, or overwrites too early, computes NaN.
// What others may add to meanwhile is not poisoned: an addition takes place when its time has passed, so who reads too early
// misses it, and who clears too early has it left for the next launch. A clear does poison, and what is added while it takes
// its time is lost.
#pragma once
#include <vector>

#include "tiles.h"

namespace mk {

constexpr unsigned short kPoison = 0x7fc1;

inline float to_float(bf16 value) {
  const u32 bits = u32(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

inline bf16 to_bf16(float value) {
  u32 bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (value != value) return {static_cast<unsigned short>(bits >> 16 | 64)};
  return {static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

inline void poison(bf16* row, i32 n) {
  for (i32 i = 0; i < n; ++i) row[i].bits = kPoison;
}

inline void gemm_tile(Block& block, const GemmOperands& op) {
  Scratch& scratch = *block.scratch;
  if (block.machine->payload) {
    if (!op.add)
      for (i32 i = 0; i < op.c_rows; ++i) poison(op.c + (op.c_row ? op.c_row[i] : i) * op.ldc, op.c_cols);
    std::memset(scratch.accumulator, 0, sizeof scratch.accumulator);
    for (i32 k = 0; k < op.k; ++k) {
      float row[kTileN];
      for (i32 j = 0; j < op.cols; ++j) row[j] = to_float(op.b[k * op.ldb + j]);
      for (i32 i = 0; i < op.rows; ++i) {
        const float a = to_float(op.a[i * op.lda + k]);
        if (a == 0.0f) continue;
        float* c = scratch.accumulator + i64(i) * kTileN;
        for (i32 j = 0; j < op.cols; ++j) c[j] += a * row[j];
      }
    }
    for (i64 i = 0; i < kTileElements; ++i) scratch.tile[i] = to_bf16(scratch.accumulator[i]);
  }
  block.unfinished_store = {op.c, op.ldc, op.c_rows, op.c_cols, op.c_row, op.add};
  block.machine->charge_gemm(block, op.k, op.task);
}

// Threads of this process and of others add to the same element.
inline void add_to(bf16& sum, bf16 value) {
  const std::atomic_ref<unsigned short> bits(sum.bits);
  unsigned short seen = bits.load(std::memory_order_relaxed);
  while (!bits.compare_exchange_weak(seen, to_bf16(to_float({seen}) + to_float(value)).bits, std::memory_order_relaxed)) {
  }
}

inline void finish_stores(Block& block) {
  const TileStore store = block.unfinished_store;
  if (store.add) {
    Traffic traffic;
    traffic.destinations = 1;
    traffic.destination[0] = store.destination;
    traffic.bytes = i64(store.rows) * store.cols * i64(sizeof(bf16));
    traffic.adds = true;
    block.machine->charge_move(block, traffic);
  } else {
    block.machine->charge_store(block, kTileBytes);
  }
  if (block.machine->payload)
    for (i32 i = 0; i < store.rows; ++i) {
      const bf16* row = block.scratch->tile + i64(i) * kTileN;
      if (!store.add) std::memcpy(store.row(i), row, size_t(store.cols) * sizeof(bf16));
      else
        for (i32 j = 0; j < store.cols; ++j) add_to(store.row(i)[j], row[j]);
    }
  block.unfinished_store = {};
}

template <class Source>
void sum_rows(Block& block, i32 cols, i32 sources, Source source, i32 first, i32 last) {
  for (i32 i = first; i < last; ++i) {
    float sum[kTileN] = {};
    for (i32 s = 0; s < sources; ++s)
      for (i32 j = 0; j < cols; ++j) sum[j] += to_float(source(s)[i64(i) * kTileN + j]);
    for (i32 j = 0; j < cols; ++j) block.scratch->tile[i64(i) * kTileN + j] = to_bf16(sum[j]);
  }
}

// Half of the sources is read at the start and half at the end of the transfer's time, so that both a source that is not
// there yet and one that is overwritten too early show.
template <class Source, class Destination>
void reduce(Block& block, const Window& window, i32 sources, Source source, i32 destinations, Destination destination) {
  const bool payload = block.machine->payload;
  if (payload) {
    for (i32 d = 0; d < destinations; ++d)
      for (i32 i = 0; i < window.rows; ++i) poison(destination(d) + i * window.stride, window.cols);
    sum_rows(block, window.cols, sources, source, 0, window.rows / 2);
  }
  Traffic traffic;
  traffic.sources = sources;
  traffic.destinations = destinations;
  traffic.bytes = i64(window.rows) * window.cols * i64(sizeof(bf16));
  for (i32 s = 0; s < sources; ++s) traffic.source[s] = source(s);
  for (i32 d = 0; d < destinations; ++d) traffic.destination[d] = destination(d);
  block.machine->charge_move(block, traffic);
  if (payload) {
    sum_rows(block, window.cols, sources, source, window.rows / 2, window.rows);
    for (i32 d = 0; d < destinations; ++d)
      for (i32 i = 0; i < window.rows; ++i)
        std::memcpy(destination(d) + i * window.stride, block.scratch->tile + i64(i) * kTileN, size_t(window.cols) * sizeof(bf16));
  }
}

inline void clear(Block& block, i32 rows, i32 cols, bf16* tile) {
  const bool payload = block.machine->payload;
  if (payload)
    for (i32 i = 0; i < rows; ++i) poison(tile + i64(i) * kTileN, cols);
  Traffic traffic;
  traffic.destinations = 1;
  traffic.destination[0] = tile;
  traffic.bytes = i64(rows) * cols * i64(sizeof(bf16));
  block.machine->charge_move(block, traffic);
  if (payload)
    for (i32 i = 0; i < rows; ++i) std::memset(tile + i64(i) * kTileN, 0, size_t(cols) * sizeof(bf16));
}

template <class Destination>
void copy(Block& block, const Strip& strip, const bf16* source, i32 destinations, Destination destination) {
  const bool payload = block.machine->payload;
  // The first half of every row is read at the start, the other at the end, as above.
  const size_t half = size_t(strip.cols / 2), rest = size_t(strip.cols) - half;
  std::vector<bf16> early;
  if (payload) {
    for (i32 d = 0; d < destinations; ++d)
      for (i32 i = 0; i < strip.rows; ++i) poison(destination(d) + i * strip.stride, strip.cols);
    early.reserve(size_t(strip.rows) * half);
    for (i32 i = 0; i < strip.rows; ++i) {
      const bf16* row = source + i * strip.source_stride;
      early.insert(early.end(), row, row + half);
    }
  }
  Traffic traffic;
  traffic.sources = 1;
  traffic.destinations = destinations;
  traffic.bytes = i64(strip.rows) * strip.cols * i64(sizeof(bf16));
  traffic.source[0] = source;
  for (i32 d = 0; d < destinations; ++d) traffic.destination[d] = destination(d);
  block.machine->charge_move(block, traffic);
  if (payload)
    for (i32 d = 0; d < destinations; ++d)
      for (i32 i = 0; i < strip.rows; ++i) {
        bf16* row = destination(d) + i * strip.stride;
        std::memcpy(row, early.data() + size_t(i) * half, half * sizeof(bf16));
        std::memcpy(row + half, source + i * strip.source_stride + half, rest * sizeof(bf16));
      }
}

}  // namespace mk
