// Integer names and the element type of every payload.
#pragma once
#ifndef __CUDACC_RTC__
#include <cstddef>
#include <cstdint>
#endif

namespace mk {

using u8 = unsigned char;
using u32 = unsigned int;
using i32 = int;
using u64 = unsigned long long;
using i64 = long long;

// bfloat16 as raw bits: the three platforms round it the same way, to nearest even.
struct bf16 {
  unsigned short bits;
};

constexpr i32 kMaxNodeRanks = 16;  // ranks that share NVLink
constexpr i32 kMaxNodes = 64;

// Tile of C that one compute task makes, and the depth of one step of its main loop.
#ifndef MK_TILE_M
#define MK_TILE_M 128
#endif
#ifndef MK_TILE_N
#define MK_TILE_N 256
#endif
#ifndef MK_TILE_K
#define MK_TILE_K 32
#endif
constexpr i32 kTileM = MK_TILE_M;
constexpr i32 kTileN = MK_TILE_N;
constexpr i32 kTileK = MK_TILE_K;
constexpr i64 kTileElements = i64(kTileM) * kTileN;
constexpr i64 kTileBytes = kTileElements * i64(sizeof(bf16));

constexpr i32 ceil_div(i32 a, i32 b) { return (a + b - 1) / b; }

}  // namespace mk
