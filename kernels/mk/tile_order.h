// The order in which the tiles of a matrix are computed.
#pragma once
#include "types.h"

namespace mk {

inline i32 least(i32 a, i32 b) { return a < b ? a : b; }

// A matrix of tiles in groups of rows, each walked column by column, so that concurrent tiles share operands in L2.
struct TileOrder {
  i32 rows, columns;
  i32 group;  // rows; the last group may have fewer

  i32 tiles() const { return rows * columns; }
  i32 row(i32 tile) const { return first(tile) + (tile - first(tile) * columns) % height(tile); }
  i32 column(i32 tile) const { return (tile - first(tile) * columns) / height(tile); }

 private:
  i32 first(i32 tile) const { return tile / (group * columns) * group; }
  i32 height(i32 tile) const { return least(rows - first(tile), group); }
};

}  // namespace mk
