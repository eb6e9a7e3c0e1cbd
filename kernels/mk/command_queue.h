// Commands from a block to the host proxy. A command is 16 bytes: two words, each with a lap bit that tells a fresh slot
// from the one it overwrites, so a slot needs no clearing. Several blocks share a ring; a slot is claimed from a head in
// device memory and published by a system-scope release of its first word.
#pragma once
#include "flags.h"

namespace mk {

constexpr i64 kCommandOffsetUnit = 128;  // bytes; source and destination are heap offsets in this unit
constexpr i64 kCommandSizeUnit = 16;     // bytes
constexpr i64 kCommandMostBytes = ((i64(1) << 18) - 1) * kCommandSizeUnit;
constexpr u32 kQueueFullFlag = 0xffff;   // what a report calls the wait for a free slot

enum class CommandOp : u32 { none = 0, put = 1 };  // put: copy `bytes` (may be 0), then set the flag

struct Command {
  CommandOp op;
  i32 peer;          // node of the rail peer
  u32 flag;          // index of the word in the peer's control region
  i64 source;        // byte offset in the own heap
  i64 destination;   // byte offset in the peer's heap
  i64 bytes;
  u32 epoch;         // only the low 7 bits travel
};

constexpr u32 kCommandEpochMask = 127;

// First word:  lap 1 | source 31 | destination 31.  Second word: lap 1 | op 4 | peer 10 | flag 24 | bytes 18 | epoch 7.
struct PackedCommand {
  u64 first, second;
};

constexpr PackedCommand pack(const Command& c, u64 lap) {
  return {lap << 63 | u64(c.source / kCommandOffsetUnit) << 31 | u64(c.destination / kCommandOffsetUnit),
          lap << 63 | u64(c.op) << 59 | u64(c.peer) << 49 | u64(c.flag) << 25 | u64(c.bytes / kCommandSizeUnit) << 7 |
              (c.epoch & kCommandEpochMask)};
}

constexpr Command unpack(const PackedCommand& p) {
  return {CommandOp(p.second >> 59 & 15),
          i32(p.second >> 49 & 1023),
          u32(p.second >> 25 & 0xffffff),
          i64(p.first >> 31 & 0x7fffffff) * kCommandOffsetUnit,
          i64(p.first & 0x7fffffff) * kCommandOffsetUnit,
          i64(p.second >> 7 & 0x3ffff) * kCommandSizeUnit,
          u32(p.second & kCommandEpochMask)};
}

// Lap bit of the `position`-th command of a ring; slots start as zero, so the first lap is 1.
constexpr u64 lap_bit(u64 position, i32 depth) { return (position / u64(depth) + 1) & 1; }

struct CommandQueue {
  u64* slots;   // host memory: rings * depth * 2 words
  u64* tails;   // host memory: commands taken by the proxy, one word a ring
  u64* heads;   // device memory: commands claimed, one word a ring
  u64* full;    // device memory: pushes that found their ring full
  i32 rings;
  i32 depth;

  // By the whole block; everything it wrote or acquired before is visible to the proxy and what it starts. A full ring
  // is waited for, never overrun. False: given up.
  bool push(Block& block, const Command& command) const {
    block.sync();
    bool pushed = true;
    if (block.leader()) {
      const i32 ring = block.index % rings;
      const u64 position = fetch_add<Order::relaxed, Scope::gpu>(block, heads + ring, 1);
      if (position >= u64(depth)) {
        const u64 taken = position - u64(depth) + 1;
        if (load<Order::acquire, Scope::system>(block, tails + ring) < taken) {
          fetch_add<Order::relaxed, Scope::gpu>(block, full, 1);
          pushed = poll<Scope::system>(block, {tails + ring, kQueueFullFlag, u32(ring)}, taken);
        }
      }
      if (pushed) {
        const PackedCommand packed = pack(command, lap_bit(position, depth));
        u64* slot = slots + 2 * (i64(ring) * depth + i64(position % u64(depth)));
        store<Order::relaxed, Scope::system>(block, slot + 1, packed.second);
        store<Order::release, Scope::system>(block, slot, packed.first);
      }
    }
    return block.broadcast(pushed);
  }
};

}  // namespace mk
