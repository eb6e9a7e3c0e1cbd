// Attention with mma.sync. Each of the eight warps has 16 rows of queries, which stay in its registers as operands, and
// takes keys 64 at a time: their logits become weights in the registers where they were accumulated, which is the layout
// of the next product's left operand. Keys and values of two tiles fit into shared memory, rows of d elements whose
// 16-byte pieces are XORed with the row's low bits as in tiles_cuda.h.
#pragma once
#include "attention.h"

namespace mk {

__device__ __forceinline__ float power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

template <i32 d> class Attention {
  static constexpr u32 kRowBytes = d * sizeof(bf16), kMatrixBytes = kKeyRows * kRowBytes, kTileBytes = 2 * kMatrixBytes;
  static constexpr i32 kSteps = d / 16, kKeyFragments = kKeysAtOnce / 8;
  static_assert(kQueryRows == 16 * kThreads / 32 && kQueryRows <= kKeyRows);
  static_assert(2 * kTileBytes <= kStages * kStageBytes);

  u32 q_[kSteps][4];
  float sum_[2 * kSteps][4];
  float highest_[2], total_[2];  // of the lane's rows, 8 apart; the total is that of the lane's keys alone
  u32 loading_ = 0, adding_ = 0;  // the tile's place, by turns

 public:
  __device__ __forceinline__ Attention(Block& block, const QueryTile& queries)
      : highest_{-__int_as_float(0x7f800000), -__int_as_float(0x7f800000)}, total_{0.0f, 0.0f} {
#pragma unroll
    for (auto& fragment : sum_)
#pragma unroll
      for (float& value : fragment) value = 0.0f;
    // They pass through the place of the second tile, which is free until the first one is here.
    const u32 place = shared_address(mk_shared) + kTileBytes;
    copy_rows(place, queries.q, queries.rows);
    commit_copies();
    wait_copies<0>();
    block.sync();
    const u32 lane = lane_index();
    const u32 from = place + (u32(first_row()) + lane % 16) * kRowBytes + (lane / 16 ^ lane % 8) * kPiece;
#pragma unroll
    for (i32 step = 0; step < kSteps; ++step) load_matrices(q_[step], from ^ u32(step) * 2 * kPiece);
    block.sync();
  }

  __device__ __forceinline__ void load(Block&, const KeyTile& keys) {
    const u32 place = shared_address(mk_shared) + loading_;
    copy_rows(place, keys.k, keys.rows);
    copy_rows(place + kMatrixBytes, keys.v, keys.rows);
    commit_copies();
    loading_ ^= kTileBytes;
  }
  // Groups of copies are counted, not tiles.
  __device__ __forceinline__ void load_nothing() { commit_copies(); }

  __device__ __forceinline__ void add(Block& block, const KeyTile& keys) {
    wait_copies<1>();
    block.sync();
    const u32 place = shared_address(mk_shared) + adding_;
#pragma unroll 1
    for (i32 first = 0; first < keys.rows; first += kKeysAtOnce) add_keys(place + u32(first) * kRowBytes, first, keys);
    block.sync();  // the place is free again
    adding_ ^= kTileBytes;
  }

  __device__ __forceinline__ void store(Block&, const QueryTile& queries) const {
    const u32 lane = lane_index();
#pragma unroll
    for (i32 half = 0; half < 2; ++half) {
      const float scale = 1.0f / over_row(total_[half], [](float a, float b) { return a + b; });
      const i32 row = first_row() + half * 8 + i32(lane / 4);
      if (row >= queries.rows) continue;
      u32* to = reinterpret_cast<u32*>(queries.out + row * d) + lane % 4;
#pragma unroll
      for (i32 j = 0; j < 2 * kSteps; ++j) to[j * 4] = pack_bf16(sum_[j][half * 2] * scale, sum_[j][half * 2 + 1] * scale);
    }
  }

 private:
  __device__ __forceinline__ static u32 lane_index() { return u32(thread_index()) % 32; }
  __device__ __forceinline__ static i32 first_row() { return thread_index() / 32 * 16; }

  // Four lanes share a row.
  template <class Combine> __device__ __forceinline__ static float over_row(float value, Combine combine) {
    value = combine(value, __shfl_xor_sync(0xffffffff, value, 1));
    return combine(value, __shfl_xor_sync(0xffffffff, value, 2));
  }

  // kKeyRows of them; what is beyond `rows` is not read and arrives as zero.
  __device__ __forceinline__ static void copy_rows(u32 to, const bf16* from, i32 rows) {
    constexpr i32 kPieces = d / 8, kRowsApart = kThreads / kPieces;
    static_assert(kRowsApart % 8 == 0, "all rows of a thread have their pieces at the same place");
    const i32 thread = thread_index(), piece = thread % kPieces, first = thread / kPieces;
    from += first * d + piece * 8;
    to += u32(first) * kRowBytes + u32(piece ^ (first & 7)) * kPiece;
#pragma unroll
    for (i32 i = 0; i < kKeyRows; i += kRowsApart)
      copy_piece(to + u32(i) * kRowBytes, from + i * d, first + i < rows ? kPiece : 0);
  }

  // Takes in kKeysAtOnce keys, the first of which is number `first` of its tile.
  __device__ __forceinline__ void add_keys(u32 keys_at, i32 first, const KeyTile& keys) {
    float weight[kKeyFragments][4];
    logits(weight, keys_at);
    if (keys.is_diagonal || keys.rows < first + kKeysAtOnce) hide(weight, first, keys);
    take_weights(weight);
    add_values(weight, keys_at + kMatrixBytes);
  }

  __device__ __forceinline__ void logits(float (&logit)[kKeyFragments][4], u32 keys_at) const {
#pragma unroll
    for (auto& fragment : logit)
#pragma unroll
      for (float& value : fragment) value = 0.0f;
    const u32 lane = lane_index();
    const u32 from = keys_at + (lane / 16 * 8 + lane % 8) * kRowBytes + (lane / 8 % 2 ^ lane % 8) * kPiece;
#pragma unroll
    for (i32 step = 0; step < kSteps; ++step)
#pragma unroll
      for (i32 j = 0; j < kKeyFragments; j += 2) {
        u32 k[4];
        load_matrices(k, (from ^ u32(step) * 2 * kPiece) + u32(j * 8) * kRowBytes);
        multiply(logit[j], q_[step], k[0], k[1]);
        multiply(logit[j + 1], q_[step], k[2], k[3]);
      }
  }

  __device__ __forceinline__ void hide(float (&logit)[kKeyFragments][4], i32 first, const KeyTile& keys) const {
    const i32 lane = i32(lane_index()), row = first_row() + lane / 4;
#pragma unroll
    for (i32 half = 0; half < 2; ++half) {
      const i32 visible = keys.is_diagonal ? min(keys.rows, row + half * 8 + 1) : keys.rows;
#pragma unroll
      for (i32 j = 0; j < kKeyFragments; ++j)
#pragma unroll
        for (i32 e = 0; e < 2; ++e)
          if (first + j * 8 + lane % 4 * 2 + e >= visible) logit[j][half * 2 + e] = -__int_as_float(0x7f800000);
    }
  }

  // Logits become weights. The scaled maximum is rounded before it is subtracted, with the same effect on all keys.
  __device__ __forceinline__ void take_weights(float (&weight)[kKeyFragments][4]) {
    constexpr float kScale = logit_scale<d>();
#pragma unroll
    for (i32 half = 0; half < 2; ++half) {
      float highest = highest_[half];
#pragma unroll
      for (i32 j = 0; j < kKeyFragments; ++j) highest = fmaxf(highest, fmaxf(weight[j][half * 2], weight[j][half * 2 + 1]));
      highest = over_row(highest, [](float a, float b) { return fmaxf(a, b); });
      const float before = power_of_two((highest_[half] - highest) * kScale), shift = highest * kScale;
      highest_[half] = highest;
      total_[half] *= before;
#pragma unroll
      for (i32 j = 0; j < 2 * kSteps; ++j) {
        sum_[j][half * 2] *= before;
        sum_[j][half * 2 + 1] *= before;
      }
#pragma unroll
      for (i32 j = 0; j < kKeyFragments; ++j)
#pragma unroll
        for (i32 e = 0; e < 2; ++e) {
          float& value = weight[j][half * 2 + e];
          value = power_of_two(__fmaf_rn(value, kScale, -shift));
          total_[half] += value;
        }
    }
  }

  __device__ __forceinline__ void add_values(const float (&weight)[kKeyFragments][4], u32 values_at) {
    const u32 lane = lane_index(), from = values_at + lane % 16 * kRowBytes + (lane / 16 ^ lane % 8) * kPiece;
#pragma unroll
    for (i32 i = 0; i < kKeyFragments; i += 2) {
      const u32 p[4] = {pack_bf16(weight[i][0], weight[i][1]), pack_bf16(weight[i][2], weight[i][3]),
                        pack_bf16(weight[i + 1][0], weight[i + 1][1]), pack_bf16(weight[i + 1][2], weight[i + 1][3])};
#pragma unroll
      for (i32 j = 0; j < kSteps; ++j) {
        u32 v[4];
        load_matrices_transposed(v, (from ^ u32(j) * 2 * kPiece) + u32(i * 8) * kRowBytes);
        multiply(sum_[2 * j], p, v[0], v[1]);
        multiply(sum_[2 * j + 1], p, v[2], v[3]);
      }
    }
  }
};

}  // namespace mk
