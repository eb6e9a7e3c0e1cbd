// Work on tiles. A platform provides:
//   gemm_tile(block, operands)   C = A B for one tile, fp32 accumulation, rounded once to bf16; its store is asynchronous
//                                with `add` added to what c holds, atomically for each element and for all GPUs of the
//                                node, and each sum rounded to bf16; this is asynchronous too
//   finish_stores(block)         the full wait: the bytes of the stores so far are visible, not only read from the source
//   reduce(block, window, sources, source, destinations, destination)
//                                the tiles source(0), source(1), ... summed in this order in fp32, rounded once, and written
//                                from destination(d) on for every d. Functions, not arrays: an array that is indexed at run
//                                time lies in a GPU thread's local memory.
//   clear(block, rows, cols, tile)   the first rows and columns, a multiple of 8, of a tile become zero, once all threads of
//                                the block are done with what they hold
//   copy(block, strip, source, destinations, destination)
//                                rows as they are, read once and written from destination(d) on for every d
#pragma once
#include "flags.h"

namespace mk {

struct GemmOperands {
  const bf16* a;  // row-major, first row of the tile
  const bf16* b;  // row-major, first column of the tile
  bf16* c;
  i64 lda, ldb, ldc;  // elements, multiples of 8
  i32 k;
  i32 rows, cols;      // what of the tile is inside the matrix; the rest of the product is zero
  i32 c_rows, c_cols;  // what of the product is written; a multiple of 8 columns
  i32 task;            // for the trace and the cost model
  const i32* c_row = nullptr;  // row of c where each row of the product goes; null: the same
  bool add = false;            // c += A B
};

// What `reduce` writes at each destination; cols is padded to a multiple of 8 inside the stride.
struct Window {
  i64 stride;  // elements between rows of a destination; a source is a tile, kTileN apart
  i32 rows, cols;
};

// What `copy` moves; cols and both strides are multiples of 8 elements.
struct Strip {
  i64 source_stride, stride;  // elements from row to row
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
