// Work on tiles. A platform provides:
//   gemm_tile(block, operands)   C = A B for one tile, fp32 accumulation, rounded once to bf16; its store is asynchronous
//   finish_stores(block)         the full wait: the bytes of the stores so far are visible, not only read from the source
//   reduce(block, window, sources, source, destinations, destination)
//                                the tiles source(0), source(1), ... summed in this order in fp32, rounded once, and written
//                                from destination(d) on for every d. Functions, not arrays: an array that is indexed at run
//                                time lies in a GPU thread's local memory.
#pragma once
#include "flags.h"

namespace mk {

struct GemmOperands {
  const bf16* a;  // row-major, first row of the tile
  const bf16* b;  // row-major, first column of the tile
  bf16* c;        // tile-major: kTileM rows of kTileN
  i64 lda, ldb;   // elements, multiples of 8
  i32 k;
  i32 rows, cols;  // what of the tile is inside the matrix; the rest of c is written as zero
  i32 task;        // for the trace and the cost model
};

// What `reduce` writes at each destination; cols is padded to a multiple of 8 inside the stride.
struct Window {
  i64 stride;  // elements between rows of a destination; a source is a tile, kTileN apart
  i32 rows, cols;
};

}  // namespace mk

#ifdef __CUDACC__
#include "tiles_cuda.h"
#else
#include "tiles_cpu.h"
#endif

namespace mk {

// Persistent GEMM: `schedule.next(tile)` claims, `schedule.operands(tile)` says what it is, `schedule.done(tile)` runs once
// its bytes are visible.
template <class Schedule> void gemm_role(Block& block, Schedule& schedule) {
  for (i32 tile; schedule.next(tile);) {
    gemm_tile(block, schedule.operands(tile));
    finish_stores(block);
    schedule.done(tile);
  }
}

}  // namespace mk
