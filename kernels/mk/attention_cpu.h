// Attention in plain loops. With the simulator the result is poisoned from the start of a task to its end, and half of the
// queries read the keys when a tile is taken in, half when its time has passed, so that both a tile that is not there
// yet and one that is overwritten too early show.
#pragma once
#include <cmath>

#include "attention.h"

namespace mk {

template <i32 d> class Attention {
  static_assert(d <= kMostHeadDim);

 public:
  Attention(Block& block, const QueryTile& queries) : queries_(queries) {
    block.machine->charge_gemm(block, 0, queries.task);
    if (!block.machine->payload) return;
    AttentionScratch& s = block.scratch->attention;
    poison(queries.out, queries.rows * d);
    std::memset(s.sum, 0, sizeof s.sum);
    for (i32 i = 0; i < kQueryRows; ++i) s.highest[i] = -INFINITY, s.total[i] = 0.0f;
  }

  void load(Block&, const KeyTile&) {}
  void load_nothing() {}

  void add(Block& block, const KeyTile& keys) {
    const bool payload = block.machine->payload;
    if (payload) add_rows(block.scratch->attention, keys, 0, queries_.rows / 2);
    block.machine->charge_attention(block, ceil_div(keys.rows, kKeysAtOnce) * kKeysAtOnce, d, queries_.task);
    if (payload) add_rows(block.scratch->attention, keys, queries_.rows / 2, queries_.rows);
  }

  void store(Block& block, const QueryTile& queries) {
    if (!block.machine->payload) return;
    const AttentionScratch& s = block.scratch->attention;
    for (i32 i = 0; i < queries.rows; ++i)
      for (i32 e = 0; e < d; ++e) queries.out[i * d + e] = to_bf16(s.sum[i * d + e] / s.total[i]);
  }

 private:
  void add_rows(AttentionScratch& s, const KeyTile& keys, i32 first, i32 last) {
    // One element of all keys after the other, so that the loop over keys is the inner one.
    for (i32 j = 0; j < keys.rows; ++j)
      for (i32 e = 0; e < d; ++e) s.keys[e * kKeyRows + j] = to_float(keys.k[j * d + e]);
    for (i32 i = first; i < last; ++i) add_row(s, keys, i, keys.is_diagonal && i < keys.rows ? i + 1 : keys.rows);
  }

  void add_row(AttentionScratch& s, const KeyTile& keys, i32 i, i32 visible) {
    float logit[kKeyRows] = {};
    for (i32 e = 0; e < d; ++e) {
      const float q = to_float(queries_.q[i * d + e]);
      for (i32 j = 0; j < visible; ++j) logit[j] += q * s.keys[e * kKeyRows + j];
    }
    float highest = s.highest[i];
    for (i32 j = 0; j < visible; ++j) highest = logit[j] > highest || logit[j] != logit[j] ? logit[j] : highest;
    const float before = std::exp2((s.highest[i] - highest) * logit_scale<d>());
    float* sum = s.sum + i * d;
    float total = s.total[i] * before;
    for (i32 e = 0; e < d; ++e) sum[e] *= before;
    for (i32 j = 0; j < visible; ++j) {
      const float weight = std::exp2((logit[j] - highest) * logit_scale<d>());
      total += weight;
      const float rounded = to_float(to_bf16(weight));
      if (rounded == 0.0f) continue;
      for (i32 e = 0; e < d; ++e) sum[e] += rounded * to_float(keys.v[j * d + e]);
    }
    s.highest[i] = highest;
    s.total[i] = total;
  }

  QueryTile queries_;
};

}  // namespace mk
