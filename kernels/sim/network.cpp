#include "network.h"

#include "simulation.h"

namespace mk {

namespace {

// Metadata is moved without data too.
bool moves(const Simulation& simulation, const WirePut& put) {
  return simulation.payload || put.destination_offset < simulation.config().network_kept;
}

}  // namespace

void post_to_wire(Simulation& simulation, Rank& from, i32 node, WirePut put) {
  const SimConfig& config = simulation.config();
  Rank& to = simulation.rail_peer(from, node);
  const Picoseconds now = simulation.scheduler().current().time;
  const bool slow = now >= picos(config.slow_from_ns);
  const double rate = config.network_bytes / (slow ? config.slow_factor : 1.0), bytes = double(put.bytes);
  const Picoseconds sent = from.network_out.reserve(now, bytes, rate, config.network_message_ns);
  const Picoseconds taken = to.network_in.reserve(now, bytes, rate, config.network_message_ns);
  put.due = std::max(sent, taken) + picos(config.network_latency_ns);
  put.source_rank = from.index;
  put.first_half = take_first_half(from.network_region + put.source_offset, to.network_region + put.destination_offset,
                                   moves(simulation, put) ? put.bytes : 0);
  to.network.wire.push_back(std::move(put));
  ordered_before(&to.network.wire.back());
  if (to.network.wire.size() == 1) simulation.scheduler().wake(to.network.idle, to.network.wire.front().due);
}

void run_network(void* argument) {
  NetworkTask& task = *static_cast<NetworkTask*>(argument);
  Simulation& simulation = *task.simulation;
  Rank& rank = *task.rank;
  for (;;) {
    while (!task.wire.empty()) {
      if (task.time < task.wire.front().due) task.time = task.wire.front().due;
      simulation.scheduler().arrive();
      ordered_after(&task.wire.front());
      const WirePut put = std::move(task.wire.front());
      task.wire.pop_front();
      const Rank& from = simulation.rank(put.source_rank);
      u64* flags = reinterpret_cast<u64*>(rank.network_region);
      land(put, moves(simulation, put), from.network_region + put.source_offset, rank.network_region + put.destination_offset,
           flags + put.flag_index);
      simulation.written_by_host(rank, put.flag_index, task.time);
    }
    simulation.scheduler().park(task.idle);
  }
}

}  // namespace mk
