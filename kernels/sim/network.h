// The simulated network: the host proxy of each rank as a fiber over transport_sim.h, and what is on the wire.
#pragma once
#include <list>
#include <memory>

#include "links.h"

namespace mk {

class Simulation;
struct Rank;

struct WirePut {
  Picoseconds due;
  i32 source_rank;
  u64 source_offset, destination_offset, bytes, flag_index, flag_value;
  std::unique_ptr<u8[]> first_half;  // read when the put was posted; the rest is read when it arrives
};

// What lands on one rank.
struct NetworkTask : Task {
  Simulation* simulation = nullptr;
  Rank* rank = nullptr;
  std::list<WirePut> wire;  // a node a put: ThreadSanitizer would take a container that moves what it holds for a race
  Waiters idle;
};

// Implemented beside the transport, where ThreadSanitizer watches: they touch the same memory as the kernel.
std::unique_ptr<u8[]> take_first_half(const u8* source, u8* destination, u64 bytes);
void land(const WirePut& put, bool payload, const u8* source, u8* destination, u64* flag);

// One for each rank; Simulation::run_proxy steps it until the simulation ends.
struct RankProxy;
struct RankProxyDeleter {
  void operator()(RankProxy*) const;
};
using RankProxyPointer = std::unique_ptr<RankProxy, RankProxyDeleter>;
RankProxyPointer make_proxy(Simulation& simulation, Rank& rank);
bool step_proxy(RankProxy& proxy);
u64 proxy_commands(const RankProxy& proxy);
u64 proxy_payload_bytes(const RankProxy& proxy);
const char* proxy_error(const RankProxy& proxy);  // empty: none

// What the transport asks of the simulator: `from` sends to the rail peer on `node`.
void post_to_wire(Simulation& simulation, Rank& from, i32 node, WirePut put);
void run_network(void* task);

}  // namespace mk
