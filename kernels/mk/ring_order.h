// In which order chunks go round a ring of nodes, and which slots of a bounded buffer they use. A link carries `lanes`
// shards: lane 0 that of the sender, lane 1 that of the node before it, and so on; what arrives in one lane goes on in the
// next. Each order has
//   count(), at(i)         turns, and the chunk of each: of some turns there is none, and its number is negative or too high
//   slots()                about twice the chunks of a shard, however many lanes
//   slot(c)                where a chunk lies in outbox and inbox
//   before(c)              the chunk whose slot it takes over; lane -1: none
#pragma once
#include "tile_order.h"

namespace mk {

struct LaneChunk {
  i32 lane, chunk;
};

// One shard after the other, for who needs a shard at a time. Lanes by turns share two shards' room.
struct ShardByShard {
  i32 lanes, chunks;

  i32 count() const { return lanes * chunks; }
  LaneChunk at(i32 i) const { return {i / chunks, i % chunks}; }
  i32 slots() const { return least(lanes, 2) * chunks; }
  i32 slot(LaneChunk c) const { return c.lane % 2 * chunks + c.chunk; }
  LaneChunk before(LaneChunk c) const { return {c.lane < 2 ? -1 : c.lane - 2, c.chunk}; }
};

// All shards side by side, for who needs the same part of each. Each lane is some chunks behind the one before, so that who
// takes a chunk need not wait for the one taken just before, of another lane, to come round. Lane 0 has room for a shard;
// the others share as much, each a window, which is longer than a lane is behind.
struct ChunkByChunk {
  i32 lanes, chunks;

  i32 window() const { return lanes < 2 ? 0 : ceil_div(chunks, lanes - 1); }
  i32 behind() const { return lanes < 2 ? 0 : least(ceil_div(kTurnsBehind, lanes), window() - 1); }
  i32 count() const { return lanes * (chunks + (lanes - 1) * behind()); }
  LaneChunk at(i32 i) const { return {i % lanes, i / lanes - i % lanes * behind()}; }
  i32 slots() const { return chunks + (lanes - 1) * window(); }
  i32 slot(LaneChunk c) const { return c.lane == 0 ? c.chunk : chunks + (c.lane - 1) * window() + c.chunk % window(); }
  LaneChunk before(LaneChunk c) const {
    return c.lane == 0 || c.chunk < window() ? LaneChunk{-1, 0} : LaneChunk{c.lane, c.chunk - window()};
  }

 private:
  static constexpr i32 kTurnsBehind = 32;
};

}  // namespace mk
