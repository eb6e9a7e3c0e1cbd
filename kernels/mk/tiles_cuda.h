// Tiles with the tensor-core instructions that every architecture from sm_80 on has: mma.sync, ldmatrix, cp.async.
//
// The eight warps of a block each own 64 x 64 of the 128 x 256 tile, two down and four across. Operands arrive in a ring
// of stages in shared memory, 64 of K at a time. Rows are stored as 16-byte pieces whose position is XORed with the row's
// low bits, so that neither the copies nor ldmatrix meet bank conflicts.
#pragma once
#include "tiles.h"

namespace mk {

constexpr i32 kStepK = 64;  // of K, one stage
#if __CUDA_ARCH__ >= 900
constexpr i32 kStages = 4;
#else
constexpr i32 kStages = 3;  // what 164 KiB of shared memory hold
#endif
constexpr u32 kPiece = 16;  // bytes: the unit of every copy
constexpr u32 kRowBytesA = kStepK * sizeof(bf16), kRowBytesB = kTileN * sizeof(bf16);
constexpr u32 kStageBytesA = kTileM * kRowBytesA, kStageBytesB = kStepK * kRowBytesB;
constexpr u32 kStageBytes = kStageBytesA + kStageBytesB;
constexpr i32 kWarpM = 64, kWarpN = 64;
constexpr i32 kFragmentsM = kWarpM / 16, kFragmentsN = kWarpN / 16, kStepsPerStage = kStepK / 16;
static_assert((kTileM / kWarpM) * (kTileN / kWarpN) * 32 == kThreads);
static_assert(kTileM * kRowBytesB <= kStages * kStageBytes, "the finished tile is staged where the operands were");

}  // namespace mk

// What a launch must give as dynamic shared memory: read from the module, not repeated in the host's code.
extern "C" __device__ const int mk_dynamic_shared_bytes = mk::kStages * mk::kStageBytes;
extern __shared__ __align__(1024) unsigned char mk_shared[];

namespace mk {

// ---------------------------------------------------------------- one instruction each

__device__ __forceinline__ u32 shared_address(const void* pointer) { return u32(__cvta_generic_to_shared(pointer)); }

// The thread's index, read anew: what is derived from it is not kept in registers from one tile to the next.
__device__ __forceinline__ i32 thread_index() {
  i32 index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// The first `bytes` of a piece; the rest becomes zero.
__device__ __forceinline__ void copy_piece(u32 to, const void* from, u32 bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global_address(from)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <i32 pending> __device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 pack_bf16(float low, float high) {
  u32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

struct alignas(16) Piece {
  u32 pair[4];  // two bf16 each
};

__device__ __forceinline__ Piece load_piece(const void* from) {
  Piece p;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(p.pair[0]), "=r"(p.pair[1]), "=r"(p.pair[2]), "=r"(p.pair[3]) : "l"(global_address(from)) : "memory");
  return p;
}
__device__ __forceinline__ void store_piece(void* to, const Piece& p) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global_address(to)), "r"(p.pair[0]), "r"(p.pair[1]),
               "r"(p.pair[2]), "r"(p.pair[3]) : "memory");
}

__device__ __forceinline__ u32 add_pairs(u32 a, u32 b) {
  return pack_bf16(__uint_as_float(a << 16) + __uint_as_float(b << 16),
                   __uint_as_float(a & 0xffff0000u) + __uint_as_float(b & 0xffff0000u));
}

// Adds to what is at `to`, atomically for each element: other blocks, also of peers, may do so at the same time.
__device__ __forceinline__ void add_at(Block& block, void* to, const Piece& p) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.sys.global.add.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};" ::"l"(global_address(to)),
               "r"(p.pair[0]), "r"(p.pair[1]), "r"(p.pair[2]), "r"(p.pair[3]) : "memory");
#else
  // It has no instruction that adds bf16 in memory.
#pragma unroll
  for (i32 half = 0; half < 2; ++half) {
    u64* const word = static_cast<u64*>(to) + half;
    u64 seen = load<Order::relaxed, Scope::system>(block, word), sum;
    do sum = u64(add_pairs(u32(seen >> 32), p.pair[2 * half + 1])) << 32 | add_pairs(u32(seen), p.pair[2 * half]);
    while (!compare_exchange<Order::relaxed, Scope::system>(block, word, seen, sum));
  }
#endif
}

// ---------------------------------------------------------------- GEMM tile

// One thread's share of the copies of a stage: 4 pieces of A in one column of pieces, 8 of B in one column.
struct StageLoader {
  static constexpr i32 kRowsApartA = kThreads / i32(kRowBytesA / kPiece);
  static constexpr i32 kRowsApartB = kThreads / i32(kRowBytesB / kPiece);

  const bf16* a;
  const bf16* b;
  i64 lda, ldb;
  i32 rows_left;   // rows of A from this thread's first on
  i32 k_left_a;    // of K, from this thread's column of A on
  i32 k_left_b;    // of K, from this thread's first row of B on
  u32 bytes_b;     // of each piece of B that are inside the matrix
  u32 to_a, to_b;  // place in a stage

  __device__ __forceinline__ explicit StageLoader(const GemmOperands& op) : lda(op.lda), ldb(op.ldb) {
    const i32 thread = thread_index();
    const i32 row_a = thread / i32(kRowBytesA / kPiece), piece_a = thread % i32(kRowBytesA / kPiece);
    const i32 row_b = thread / i32(kRowBytesB / kPiece), piece_b = thread % i32(kRowBytesB / kPiece);
    a = op.a + row_a * lda + piece_a * 8;
    b = op.b + row_b * ldb + piece_b * 8;
    rows_left = op.rows - row_a;
    k_left_a = op.k - piece_a * 8;
    k_left_b = op.k - row_b;
    bytes_b = piece_bytes(op.cols - piece_b * 8);
    // The rows of one thread are 8 apart or a multiple: their low bits, and so the place of the piece, are the same.
    to_a = u32(row_a) * kRowBytesA + (u32(piece_a ^ (row_a & 7)) * kPiece);
    to_b = kStageBytesA + u32(row_b) * kRowBytesB + (u32(piece_b ^ (row_b & 7)) * kPiece);
  }

  __device__ __forceinline__ static u32 piece_bytes(i32 elements) {
    return u32(max(0, min(elements, 8))) * u32(sizeof(bf16));
  }

  // Starts one part of the copies of the next stage; there is one for each k16 step, so that they spread over the
  // products. What lies outside of the matrices is not read and arrives as zero.
  __device__ __forceinline__ void copy_part(u32 stage, i32 part) {
    constexpr i32 kPerPartA = kTileM / kRowsApartA / kStepsPerStage, kPerPartB = kStepK / kRowsApartB / kStepsPerStage;
    const u32 bytes_a = piece_bytes(k_left_a);
#pragma unroll
    for (i32 n = 0; n < kPerPartA; ++n) {
      const i32 i = part * kPerPartA + n;
      copy_piece(stage + to_a + u32(i * kRowsApartA) * kRowBytesA, a + i * kRowsApartA * lda,
                 i * kRowsApartA < rows_left ? bytes_a : 0);
    }
#pragma unroll
    for (i32 n = 0; n < kPerPartB; ++n, b += kRowsApartB * ldb) {
      const i32 i = part * kPerPartB + n;
      copy_piece(stage + to_b + u32(i * kRowsApartB) * kRowBytesB, b, i * kRowsApartB < k_left_b ? bytes_b : 0);
    }
    if (part == kStepsPerStage - 1) {
      a += kStepK;
      k_left_a -= kStepK;
      k_left_b -= kStepK;
    }
  }
  __device__ __forceinline__ void copy(u32 stage) {
#pragma unroll
    for (i32 part = 0; part < kStepsPerStage; ++part) copy_part(stage, part);
  }
};

struct WarpTile {
  i32 row, column;  // of the warp's 64 x 64 in the tile
  u32 lane;
  u32 from_a, from_b;  // place in a stage of what this lane points ldmatrix at first
  float sum[kFragmentsM][kFragmentsN * 2][4];

  __device__ __forceinline__ WarpTile() {
    const i32 thread = thread_index(), warp = thread / 32;
    row = warp / (kTileN / kWarpN) * kWarpM;
    column = warp % (kTileN / kWarpN) * kWarpN;
    lane = u32(thread) % 32;
    const u32 line = lane % 16, piece = lane / 16 ^ lane % 8;
    from_a = (u32(row) + line) * kRowBytesA + piece * kPiece;
    from_b = kStageBytesA + line * kRowBytesB + u32(column) * u32(sizeof(bf16)) + piece * kPiece;
#pragma unroll
    for (auto& line_of : sum)
#pragma unroll
      for (auto& fragment : line_of)
#pragma unroll
        for (float& value : fragment) value = 0.0f;
  }

  // ldmatrix takes the address of one row of 8 elements from each lane; each call loads 16 x 16. A step to the right is an
  // XOR, as the places of the pieces are: one register holds the address of all of them.
  __device__ __forceinline__ void load_a(u32 (&a)[4], u32 stage, i32 i, i32 k) const {
    load_matrices(a, ((stage + from_a) ^ u32(k) * u32(sizeof(bf16))) + u32(i * 16) * kRowBytesA);
  }
  __device__ __forceinline__ void load_b(u32 (&b)[4], u32 stage, i32 k, i32 j) const {
    load_matrices_transposed(b, ((stage + from_b) ^ u32(j * 16) * u32(sizeof(bf16))) + u32(k) * kRowBytesB);
  }

  __device__ __forceinline__ void accumulate(i32 i, i32 j, const u32 (&a)[4], const u32 (&b)[4]) {
    multiply(sum[i][2 * j], a, b[0], b[1]);
    multiply(sum[i][2 * j + 1], a, b[2], b[3]);
  }

  // Rounds the tile into shared memory, rows of kRowBytesB.
  __device__ __forceinline__ void stage_result(unsigned char* tile) const {
#pragma unroll
    for (i32 i = 0; i < kFragmentsM; ++i)
#pragma unroll
      for (i32 half = 0; half < 2; ++half)
#pragma unroll
        for (i32 j = 0; j < kFragmentsN * 2; ++j) {
          const u32 m = u32(row + i * 16 + half * 8) + lane / 4, piece = u32(column / 8 + j) ^ (m & 7);
          *reinterpret_cast<u32*>(tile + m * kRowBytesB + piece * kPiece + lane % 4 * 4) =
              pack_bf16(sum[i][j][half * 2], sum[i][j][half * 2 + 1]);
        }
  }
};

__device__ __forceinline__ void gemm_tile(Block& block, const GemmOperands& op) {
  const u32 ring = shared_address(mk_shared), ring_end = ring + kStages * kStageBytes;
  const i32 steps = ceil_div(op.k, kStepK);
  StageLoader loader(op);
  WarpTile warp;

  // Groups of copies are counted, not stages: an empty group stands for a stage past the end.
#pragma unroll
  for (i32 i = 0; i < kStages - 1; ++i) {
    if (i < steps) loader.copy(ring + u32(i) * kStageBytes);
    commit_copies();
  }
  u32 reading = ring, filling = ring + (kStages - 1) * kStageBytes;
  // B is loaded one product ahead; a fragment of A is replaced by its successor right after its last use.
  u32 a[kFragmentsM][4], b[2][4];
  wait_copies<kStages - 2>();
  block.sync();
#pragma unroll
  for (i32 i = 0; i < kFragmentsM; ++i) warp.load_a(a[i], reading, i, 0);
  warp.load_b(b[0], reading, 0, 0);
  for (i32 step = 0; step < steps; ++step) {
    u32 next_reading = reading + kStageBytes;
    if (next_reading == ring_end) next_reading = ring;
    const bool fills = step + kStages - 1 < steps;
#pragma unroll
    for (i32 k = 0; k < kStepsPerStage; ++k) {
      const bool last_k = k == kStepsPerStage - 1;
      const u32 next_stage = last_k ? next_reading : reading;
      const i32 next_k = last_k ? 0 : (k + 1) * 16;
#pragma unroll
      for (i32 j = 0; j < kFragmentsN; ++j) {
        const bool last_j = j == kFragmentsN - 1;
        if (j == 1) {
          if (fills) loader.copy_part(filling, k);
          if (last_k) commit_copies();
        }
        if (last_j && last_k) {
          wait_copies<kStages - 2>();
          block.sync();
        }
        if (last_j) warp.load_b(b[(j + 1) % 2], next_stage, next_k, 0);
        else warp.load_b(b[(j + 1) % 2], reading, k * 16, j + 1);
#pragma unroll
        for (i32 i = 0; i < kFragmentsM; ++i) {
          warp.accumulate(i, j, a[i], b[j % 2]);
          if (last_j) warp.load_a(a[i], next_stage, i, next_k);
        }
      }
    }
    filling = reading;
    reading = next_reading;
  }
  // Nobody reads operands any more once all are here; no copy is in flight, so the ring can hold the result.
  wait_copies<0>();
  block.sync();
  warp.stage_result(mk_shared);
  block.sync();
  constexpr i32 kPiecesPerRow = i32(kRowBytesB / kPiece);
  for (i32 i = thread_index(); i < kTileM * kPiecesPerRow; i += kThreads) {
    const i32 row = i / kPiecesPerRow, piece = i % kPiecesPerRow;
    const unsigned char* from = mk_shared + u32(row) * kRowBytesB + u32(piece ^ (row & 7)) * kPiece;
    if (row >= op.c_rows || piece * 8 >= op.c_cols) continue;
    const i64 to = op.c_row ? op.c_row[row] : row;
    bf16* const c = op.c + to * op.ldc + piece * 8;
    if (op.add) add_at(block, c, *reinterpret_cast<const Piece*>(from));
    else store_piece(c, *reinterpret_cast<const Piece*>(from));
  }
  block.sync();  // the ring is free again
}

// The tile was written with ordinary stores, or added without waiting for it: the signal that follows releases that.
__device__ __forceinline__ void finish_stores(Block&) {}

// ---------------------------------------------------------------- reduction

__device__ __forceinline__ void add_piece(float (&sum)[8], const Piece& p) {
#pragma unroll
  for (i32 i = 0; i < 4; ++i) {
    sum[2 * i] += __uint_as_float(p.pair[i] << 16);
    sum[2 * i + 1] += __uint_as_float(p.pair[i] & 0xffff0000u);
  }
}

__device__ __forceinline__ Piece round_piece(const float (&sum)[8]) {
  return {pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]), pack_bf16(sum[4], sum[5]), pack_bf16(sum[6], sum[7])};
}

// A thread has one column of pieces and every eighth row. It keeps up to kRowsAtOnce * kSourcesAtOnce loads in flight,
// since a peer's memory is a microsecond away.
template <class Source, class Destination>
__device__ __forceinline__ void reduce(Block&, const Window& window, i32 sources, Source source, i32 destinations,
                                       Destination destination) {
  constexpr i32 kRowsAtOnce = 4, kSourcesAtOnce = 4, kRowsApart = kThreads / (kTileN / 8);
  const i32 thread = thread_index(), column = thread % (kTileN / 8) * 8;
  if (column >= window.cols) return;
  for (i32 first = thread / (kTileN / 8); first < window.rows; first += kRowsAtOnce * kRowsApart) {
    float sum[kRowsAtOnce][8] = {};
    for (i32 s = 0; s < sources; s += kSourcesAtOnce) {
      Piece pieces[kSourcesAtOnce][kRowsAtOnce] = {};
#pragma unroll
      for (i32 j = 0; j < kSourcesAtOnce; ++j) {
        if (s + j >= sources) continue;
        const bf16* from = source(s + j) + column;
#pragma unroll
        for (i32 i = 0; i < kRowsAtOnce; ++i)
          if (const i32 row = first + i * kRowsApart; row < window.rows) pieces[j][i] = load_piece(from + row * kTileN);
      }
#pragma unroll
      for (i32 j = 0; j < kSourcesAtOnce; ++j)
#pragma unroll
        for (i32 i = 0; i < kRowsAtOnce; ++i)
          if (s + j < sources) add_piece(sum[i], pieces[j][i]);
    }
    Piece rounded[kRowsAtOnce];
#pragma unroll
    for (i32 i = 0; i < kRowsAtOnce; ++i) rounded[i] = round_piece(sum[i]);
    for (i32 d = 0; d < destinations; ++d) {
      bf16* to = destination(d) + column;
#pragma unroll
      for (i32 i = 0; i < kRowsAtOnce; ++i)
        if (const i64 row = first + i * kRowsApart; row < window.rows) store_piece(to + row * window.stride, rounded[i]);
    }
  }
}

__device__ __forceinline__ void clear(Block& block, i32 rows, i32 cols, bf16* tile) {
  block.sync();
  // A row of the tile has a multiple of 8 elements: a piece is not in two of them.
  for (i32 i = thread_index() * 8; i < rows * kTileN; i += kThreads * 8)
    if (i % kTileN < cols) store_piece(tile + i, Piece{});
}

// ---------------------------------------------------------------- copy

// Consecutive threads have consecutive pieces, whatever the shape of the strip, which has fewer than 2^31 of them; each
// thread keeps kAtOnce loads in flight.
template <class Destination>
__device__ __forceinline__ void copy(Block&, const Strip& strip, const bf16* source, i32 destinations,
                                     Destination destination) {
  constexpr i32 kAtOnce = 8;
  const i32 row_pieces = strip.cols / 8, pieces = strip.rows * row_pieces;
  for (i32 first = thread_index(); first < pieces; first += kAtOnce * kThreads) {
    Piece held[kAtOnce] = {};
    i64 at[kAtOnce];
#pragma unroll
    for (i32 i = 0; i < kAtOnce; ++i) {
      const i32 piece = first + i * kThreads, row = piece / row_pieces, column = (piece - row * row_pieces) * 8;
      at[i] = row * strip.stride + column;
      if (piece < pieces) held[i] = load_piece(source + row * strip.source_stride + column);
    }
    for (i32 d = 0; d < destinations; ++d) {
      bf16* to = destination(d);
#pragma unroll
      for (i32 i = 0; i < kAtOnce; ++i)
        if (first + i * kThreads < pieces) store_piece(to + at[i], held[i]);
    }
  }
}

}  // namespace mk
