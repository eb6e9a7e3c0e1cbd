// Pacing: a copy that runs at the speed of memory is held to the rate of a link.
#pragma once
#include "flags.h"

namespace mk {

constexpr u32 kPacedFlag = 0xfffe;  // what a report calls the wait for a paced port

// When a port that is taken until `free_ns` has carried `bytes` that are there from `since_ns` on, at so many
// femtoseconds a byte (0: at once). 64 bits hold the product of what one task or command moves and any rate of a plan.
constexpr u64 paced_until(u64 free_ns, u64 since_ns, u64 bytes, u64 fs_per_byte) {
  constexpr u64 kFemtosPerNano = 1'000'000;
  return (free_ns > since_ns ? free_ns : since_ns) + (bytes * fs_per_byte + kFemtosPerNano / 2) / kFemtosPerNano;
}

// By the whole block, when since `since_ns` it has read from peers and written to peers, `bytes` together: waits until the
// rank's port has carried them. False: given up, as with any wait. `port` is a word on the own GPU, the time until which
// the port is taken; it is never reset, since what a launch reserved is over when the launch is, or soon after an abort.
//
// A port carries inwards what its rank reads and what peers write to it, outwards what it writes and what peers read. Ranks
// do alike, so peers write to it what it writes to them and read what it reads: each direction carries the rank's own reads
// and writes together, and that sum is what the rate limits.
inline bool pace(Block& block, u64* port, u64 fs_per_byte, u64 bytes, u64 since_ns) {
  if (fs_per_byte == 0) return true;
  bool carried = true;
  if (block.leader()) {
    u64 free_ns = load<Order::relaxed, Scope::gpu>(block, port), until_ns = 0, attempts = 0;
    do until_ns = paced_until(free_ns, since_ns, bytes, fs_per_byte);
    while (!compare_exchange<Order::relaxed, Scope::gpu>(block, port, free_ns, until_ns));
    for (u64 now = now_ns(block); carried && now < until_ns; now = now_ns(block))
      carried = idle(block, port, until_ns, now, kPacedFlag, 0, attempts);
  }
  return block.broadcast(carried);
}

}  // namespace mk
