// What kernels have in common in which every rank needs the shards of all ranks. Inside a node a shard is stored to every
// rank; between nodes, which are a ring, it goes from rail peer to rail peer. What a shard is, and what is computed with it,
// is up to the kernel.
//
//   local     copies a strip of the own shard to every other rank of the node; on more nodes also to the outbox.
//             Whoever completes a chunk tells the node, and does
//   send      the chunk goes to the rail peer of the next node
//   receive   copies a strip that came from the node before to every rank of the node, and to the outbox if it has further
//             nodes to go to. Whoever completes a chunk tells the node, sends it on, and gives its inbox slot back
//   compute   the kernel's; it waits for chunks
//
// A chunk is what the network carries. Its strips are the tasks. A link from a rank to its rail peer on the next node has a
// lane for each node but the next: lane 0 for the sender's shard, lane h for that of h nodes before, which came in lane
// h - 1. So every shard crosses once to each node. A chunk lies in the same slot of the sender's outbox and of the inbox
// there; the order of a kernel (ring_order.h) says in which turn chunks are sent on and which slot each has.
//
//   flag      writer                               reader              scope   says
//   gathered  local or receive, rank of the node   compute             system  a chunk of a shard is here
//   arrived   proxy of the node before             receive             system  a piece of a lane's chunk is in the inbox
//   credit    proxy of the next node               receive, exit       system  a lane's chunk is consumed there
//   finished  exit, rank of the node               exit                system  the rank reads shards no more
//
// No deadlock. local waits for nothing: every own chunk has a slot of its own, free since the launch before has ended with
// all its credits here. receive waits for `arrived` and, to send on, for the credit of the chunk that had the slot before.
// Let (h, c) be the receive of chunk c in lane h. It arrives because of a local task or of (h - 1, c) at the node before.
// Its slot on the way on, in lane h + 1, is free after the next node's receive of what had it before: (h - 1, c) if shards
// follow each other, (h + 1, c - window) if chunks do. The receives of a rank are claimed in order, by h and then c in the
// one case, by c + h * behind() and then h in the other; either way each waits for receives that are earlier in that order,
// on whichever rank, and one block a rank is enough, since it turns to receive only when it need not wait or all local
// tasks are claimed. compute waits for local and receive, never in a block that they need: the controller's target is 1 at
// least, and a block that is lent takes only a task whose input is here. Exit waits for all of these, and nothing waits
// for exit but the next launch.
#pragma once
#include "mk.h"
#include "ring_order.h"

#define MK_ALL_GATHER_FLAGS(F) F(gathered) F(arrived) F(credit) F(finished)

#define MK_ALL_GATHER_PARAMS(S, A)                                           \
  MK_LAUNCH_PARAMS(S, A)                                                     \
  S(u64, outbox) /* offset in the network region: slots of a chunk */        \
  S(u64, inbox)

namespace mk {

enum FlagKind : u32 { gathered, arrived, credit, finished };

// A strip that arrives: with which chunk of a lane, and what it is.
struct Arrival {
  LaneChunk at;
  i32 shard, strip;
};

// A part of a chunk.
struct ByteRange {
  i64 begin, end;
};

// Where things are, from the parameters alone. A shard has the number of its rank. A Map, which is derived, adds
//   Order                            ShardByShard or ChunkByChunk
//   strips(shard), most_strips()     there may be none; of any shard, the same on all ranks
//   strips_of_chunk()                all chunks of a shard but the last have so many
//   slot_bytes()                     room for a chunk
//   chunk_bytes(shard, chunk), bytes_of_strip(shard, strip)   what is sent, and where in it a strip lies
template <class Map, class Params> struct AllGatherMap {
  const Params& p;

  i32 shard(i32 node, i32 local_rank) const { return node * p.local_ranks + local_rank; }
  i32 most_chunks() const { return ceil_div(map().most_strips(), map().strips_of_chunk()); }
  i32 chunks(i32 shard) const { return ceil_div(map().strips(shard), map().strips_of_chunk()); }
  i32 chunk_of_strip(i32 strip) const { return strip / map().strips_of_chunk(); }
  i32 strips_in_chunk(i32 shard, i32 chunk) const {
    return least(map().strips(shard) - chunk * map().strips_of_chunk(), map().strips_of_chunk());
  }

  // The ring.
  i32 next_node() const { return (p.node + 1) % p.nodes; }
  i32 node_before() const { return (p.node + p.nodes - 1) % p.nodes; }
  i32 lanes() const { return p.nodes - 1; }
  auto order() const { return typename Map::Order{lanes(), most_chunks()}; }
  // What a lane carries from this node, and what it brings here.
  i32 sent_in(i32 lane) const { return shard((p.node - lane + p.nodes) % p.nodes, p.local_rank); }
  i32 arriving_in(i32 lane) const { return shard((p.node - 1 - lane + p.nodes) % p.nodes, p.local_rank); }

  // Receive tasks in the order of tickets; one is empty if the shard has no such strip.
  i32 arrivals() const { return order().count() * map().strips_of_chunk(); }
  Arrival arrival(i32 task) const {
    const i32 each = map().strips_of_chunk();
    const LaneChunk at = order().at(task / each);
    return {at, arriving_in(at.lane), at.chunk * each + task % each};
  }
  bool is_empty(const Arrival& a) const { return a.strip < 0 || a.strip >= map().strips(a.shard); }
  i32 arriving_strips() const {
    i32 count = 0;
    for (i32 lane = 0; lane < lanes(); ++lane) count += map().strips(arriving_in(lane));
    return count;
  }
  // Lane -1: it goes no further.
  LaneChunk onward(const Arrival& a) const {
    return {a.at.lane + 1 < lanes() ? a.at.lane + 1 : -1, a.at.chunk};
  }
  // What had the slot of `c`, if anything had. Shards that lack a chunk are passed over.
  LaneChunk before(LaneChunk c) const {
    if (c.lane < 0) return c;
    do c = order().before(c);
    while (c.lane >= 0 && c.chunk >= chunks(sent_in(c.lane)));
    return c;
  }

  // A chunk crosses in as many puts as commands of limited size make necessary, in equal pieces of whole offset units.
  i32 pieces() const {
    constexpr i64 kMost = kCommandMostBytes / kCommandOffsetUnit * kCommandOffsetUnit;
    return i32((map().slot_bytes() + kMost - 1) / kMost);
  }
  i64 piece_bytes() const {
    const i64 units = map().slot_bytes() / kCommandOffsetUnit;
    return (units + pieces() - 1) / pieces() * kCommandOffsetUnit;
  }

  template <class T> T* at(i32 local_rank, u64 offset) const { return reinterpret_cast<T*>(p.heap[local_rank] + offset); }
  i64 slot_offset(LaneChunk c) const { return order().slot(c) * map().slot_bytes(); }
  bf16* in_slot(u64 box, LaneChunk c, i64 byte) const {
    return reinterpret_cast<bf16*>(p.network + box + u64(slot_offset(c) + byte));
  }

  // Control words of the heap: flags that ranks of the node set, every kind consecutive, then counters.
  // Control words of the network region, which comes first in it: flags that the proxy sets.
  i64 flag_words() const { return i64(p.ranks) * most_chunks() + p.local_ranks; }
  i64 network_control_bytes() const { return lane_index({lanes(), 0}) * (pieces() + 1) * i64(sizeof(u64)); }

  Flags gathered_at(i32 local_rank, i32 shard, i32 chunk, i32 count) const {
    const i64 index = i64(shard) * most_chunks() + chunk;
    return {at<u64>(local_rank, p.control_offset) + index, gathered, u32(index), count};
  }
  Flags finished_at(i32 local_rank) const {
    return {at<u64>(local_rank, p.control_offset) + i64(p.ranks) * most_chunks(), finished, 0, p.local_ranks};
  }
  i64 lane_index(LaneChunk c) const { return i64(c.lane) * most_chunks() + c.chunk; }
  i64 arrived_index(LaneChunk c, i32 piece) const { return lane_index(c) * pieces() + piece; }
  i64 credit_index(LaneChunk c) const { return arrived_index({lanes(), 0}, 0) + lane_index(c); }
  // Of the pieces that hold a strip.
  Flags arrived_of(const Arrival& a) const {
    const ByteRange bytes = map().bytes_of_strip(a.shard, a.strip);
    const i32 first = i32(bytes.begin / piece_bytes()), last = i32((bytes.end - 1) / piece_bytes());
    const i64 index = arrived_index(a.at, first);
    return {reinterpret_cast<u64*>(p.network) + index, arrived, u32(index), last - first + 1};
  }
  // Of consecutive chunks of a lane.
  Flags credits(LaneChunk first, i32 count) const {
    return {reinterpret_cast<u64*>(p.network) + credit_index(first), credit, u32(lane_index(first)), count};
  }

  // Counters follow the flags, then the queue's heads and one counter for each chunk that this rank copies.
  struct Counters {
    ControllerWords controller;
    u64 compute_tickets, local_tickets, receive_tickets;
    u64 left;        // blocks that have nothing left to do
    u64 queue_full;  // pushes that found their ring full
    u64 port;        // pacing: until when the NVLink port is taken
  };
  Counters& counters() const {
    return *reinterpret_cast<Counters*>(at<u64>(p.local_rank, p.control_offset) + flag_words());
  }
  u64* queue_heads() const { return reinterpret_cast<u64*>(&counters() + 1); }
  // Strips of a chunk that are copied: of an own chunk, of one that arrived.
  u64* copied_own(i32 chunk) const { return queue_heads() + p.rings + chunk; }
  u64* copied(LaneChunk c) const { return copied_own(most_chunks()) + lane_index(c); }
  u64* packed(i32 chunk) const { return copied({lanes(), chunk}); }  // strips of an own chunk in the outbox
  i64 control_bytes() const {
    return i64(sizeof(Counters)) + (flag_words() + p.rings + lane_index({p.nodes + 1, 0})) * i64(sizeof(u64));
  }

 private:
  const Map& map() const { return static_cast<const Map&>(*this); }
};

// A Kernel, which is derived, adds compute(limit), can_lend(), and
//   kOwnShardFirst                  whether the own shard goes before what has arrived; else both go at one pace
//   copy_own(strip, peers, outbox)  to the first `peers` other ranks, and to `outbox`, the strip's place in the slot, unless
//                                   that is null
//   copy_arrived(shard, strip, inbox, outbox)   from `inbox` to all ranks of the node, likewise
template <class Kernel, class Map, class Params> struct AllGather {
  Block& block;
  const Params& p;
  Map map;
  Controller controller;
  Trace trace;
  CommandQueue queue;
  i32 local_tasks, receive_tasks;
  u64 task_begin = 0;

  AllGather(Block& block_, const Params& p_)
      : block(block_), p(p_), map{p_},
        controller{&map.counters().controller, map.template at<HistoryRow>(p.local_rank, p.history_offset), p.history_capacity,
                   p.epoch, Policy(p.policy), p.blocks, p.comm_sms, {}, now_ns(block_)},
        trace{map.template at<TraceEvent>(p.local_rank, p.trace_offset), p.trace_capacity},
        queue{reinterpret_cast<u64*>(p.ring_slots), reinterpret_cast<u64*>(p.ring_tails), map.queue_heads(),
              &map.counters().queue_full, p.rings, p.ring_depth},
        local_tasks(p.ranks > 1 ? map.strips(p.rank) : 0), receive_tasks(map.arrivals()) {
    controller.feeds_compute = true;
    controller.total[u32(Role::local)] = u32(local_tasks);
    controller.total[u32(Role::receive)] = u32(map.arriving_strips());
  }

  u64 now_value() const { return flag_value(p.epoch, 1); }

  void begin(Role role) {
    block.role = u32(role);
    task_begin = now_ns(block);
  }
  void end(Role role, i32 task) { trace.add(block, role, task, task_begin, now_ns(block)); }
  void count(Role role, u64 began) { controller.finished(block, role, now_ns(block) - began); }

  // No task is left for a block that comes, or comes back.
  bool all_claimed() {
    return peek(block, &map.counters().local_tickets, p.epoch) >= local_tasks &&
           peek(block, &map.counters().receive_tickets, p.epoch) >= receive_tasks;
  }

  Outcome communicate(bool may_lend) {
    auto& counters = map.counters();
    if (may_lend && all_claimed()) return Outcome::exhausted;
    return run_communication(block, controller, p.epoch, {&counters.local_tickets, local_tasks},
                             {&counters.receive_tickets, receive_tasks}, self(), may_lend);
  }

  bool can_local(i32) const { return true; }
  bool can_receive(i32 task) {
    const i32 own = peek(block, &map.counters().local_tickets, p.epoch);
    // Compute that needs the same part of all shards is to get them at one pace: neither waits until the other has ended.
    if (own < local_tasks && (Kernel::kOwnShardFirst || i64(task) * local_tasks > i64(own) * receive_tasks)) return false;
    const Arrival from = map.arrival(task);
    if (map.is_empty(from)) return true;
    const LaneChunk before = map.before(map.onward(from));
    return reached_all<Scope::system>(block, map.arrived_of(from), now_value()) &&
           (before.lane < 0 || reached_all<Scope::system>(block, map.credits(before, 1), now_value()));
  }

  bool local(i32 strip) {
    begin(Role::local);
    const u64 began = task_begin;
    const i32 chunk = map.chunk_of_strip(strip), peers = p.local_ranks - 1;
    const u32 strips = u32(map.strips_in_chunk(p.rank, chunk));
    const ByteRange bytes = map.bytes_of_strip(p.rank, strip);
    bf16* const outbox = p.nodes > 1 ? map.in_slot(p.outbox, {0, chunk}, bytes.begin) : nullptr;
    // Copies to peers queue for NVLink, and a network that has only the own shard to carry would wait with them.
    const bool sends_early = outbox && peers > 0 && Kernel::kOwnShardFirst;
    if (sends_early) {
      self().copy_own(strip, 0, outbox);
      if (completes<Scope::system>(block, map.packed(chunk), p.epoch, strips)) {
        if (!send({0, chunk})) return false;
        begin(Role::local);
      }
    }
    self().copy_own(strip, peers, sends_early ? nullptr : outbox);
    if (!carried(bytes, peers)) return false;
    end(Role::local, strip);
    if (completes<Scope::system>(block, map.copied_own(chunk), p.epoch, strips)) {
      if (outbox && !sends_early && !send({0, chunk})) return false;
      say_gathered(p.rank, chunk, peers);
    }
    count(Role::local, began);
    return true;
  }

  bool receive(i32 task) {
    block.role = u32(Role::receive);
    const Arrival from = map.arrival(task);
    if (map.is_empty(from)) return true;
    const LaneChunk onward = map.onward(from), before = map.before(onward);
    if (!wait_all<Scope::system>(block, map.arrived_of(from), now_value())) return false;
    if (before.lane >= 0 && !wait_all<Scope::system>(block, map.credits(before, 1), now_value())) return false;
    begin(Role::receive);
    const u64 began = task_begin;
    const ByteRange bytes = map.bytes_of_strip(from.shard, from.strip);
    self().copy_arrived(from.shard, from.strip, map.in_slot(p.inbox, from.at, bytes.begin),
                        onward.lane >= 0 ? map.in_slot(p.outbox, onward, bytes.begin) : nullptr);
    if (!carried(bytes, p.local_ranks - 1)) return false;
    end(Role::receive, task);
    const u32 strips = u32(map.strips_in_chunk(from.shard, from.at.chunk));
    if (completes<Scope::system>(block, map.copied(from.at), p.epoch, strips)) {
      if (onward.lane >= 0 && !send(onward)) return false;
      say_gathered(from.shard, from.at.chunk, p.local_ranks);
      if (!queue.push(block, {CommandOp::put, map.node_before(), u32(map.credit_index(from.at)), 0, 0, 0, u32(p.epoch)}))
        return false;
    }
    count(Role::receive, began);
    return true;
  }

  // A chunk that lies in the outbox.
  bool send(LaneChunk c) {
    begin(Role::send);
    const i64 bytes = map.chunk_bytes(map.sent_in(c.lane), c.chunk), piece = map.piece_bytes(), slot = map.slot_offset(c);
    for (i64 done = 0; done < bytes; done += piece) {
      const i64 left = bytes - done;
      if (!queue.push(block, {CommandOp::put, map.next_node(), u32(map.arrived_index(c, i32(done / piece))),
                              i64(p.outbox) + slot + done, i64(p.inbox) + slot + done, left < piece ? left : piece,
                              u32(p.epoch)}))
        return false;
    }
    end(Role::send, i32(map.lane_index(c)));
    return true;
  }

  // Ranks of the node, the own one last, so that they do not all write to the same at once.
  i32 peer(i32 i) const { return (p.local_rank + 1 + i) % p.local_ranks; }

  void say_gathered(i32 shard, i32 chunk, i32 ranks) {
    signal_each<Scope::system>(block, ranks, [&](i32 i) { return map.gathered_at(peer(i), shard, chunk, 1).at(0); }, now_value());
  }

  // The task has written `copies` of a strip to peers.
  bool carried(const ByteRange& strip, i32 copies) {
    return pace(block, &map.counters().port, p.pace_fs_per_byte, u64(copies) * u64(strip.end - strip.begin), task_begin);
  }

  // By the last block of the rank. Peers may then write shards here, and this rank to slots, for the next launch.
  bool leave() {
    signal_each<Scope::system>(block, p.local_ranks, [&](i32 i) { return map.finished_at(i).at(p.local_rank); }, now_value());
    if (!wait_all<Scope::system>(block, map.finished_at(p.local_rank), now_value())) return false;
    constexpr i32 kAtOnce = 64;
    for (i32 lane = 0; lane < map.lanes(); ++lane) {
      const i32 chunks = map.chunks(map.sent_in(lane));
      for (i32 chunk = 0; chunk < chunks; chunk += kAtOnce)
        if (!wait_all<Scope::system>(block, map.credits({lane, chunk}, least(chunks - chunk, kAtOnce)), now_value())) return false;
    }
    return true;
  }

 private:
  Kernel& self() { return static_cast<Kernel&>(*this); }
};

template <class Kernel> void run_all_gather(Kernel& kernel) {
  Block& block = kernel.block;
  if (block.index == 0 && block.leader()) kernel.controller.record(block);
  run_roles(block, kernel.controller, [&](i32 limit) { return kernel.compute(limit); },
            [&](bool may_lend) { return kernel.communicate(may_lend); });
  if (aborted(block)) return;
  if (!completes<Scope::system>(block, &kernel.map.counters().left, kernel.p.epoch, u32(kernel.p.blocks))) return;
  if (kernel.leave() && block.leader()) kernel.controller.record(block);
}

}  // namespace mk
