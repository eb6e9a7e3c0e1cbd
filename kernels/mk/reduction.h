// What kernels have in common that sum the products of all ranks. Every rank makes the tiles of its own product as bf16
// partials. On each node a tile has an owner, who sums the partials of the node's ranks. On several nodes these node sums
// cross the network, and are summed once more. Which tiles there are, whose and in which order is a kernel's Map; what
// becomes of a sum is in its tasks local and receive.
//
// Partials are summed in one of two ways. Ordered: each rank keeps its own, and the owner reads them all. Atomic: each rank
// adds its own to the owner's accumulator as it makes it, in bf16 and in whatever order they come, and the owner reads
// only that. It leaves it zero, before its node can hear that it is finished, so that the next launch finds it so.
#pragma once
#include "mk.h"
#include "tile_order.h"

#define MK_REDUCTION_FLAGS(F) F(ready) F(arrived) F(credit) F(finished)

#define MK_REDUCTION_PARAMS(S, A)                                                                 \
  MK_LAUNCH_PARAMS(S, A)                                                                          \
  S(u64, a)        /* offset in the heap: A, row-major, lda */                                    \
  S(u64, b)        /* B, row-major, ldb */                                                        \
  S(u64, partial)  /* ordered: own product, one tile after another */                             \
  S(u64, accumulator) /* atomic: sums of own slots; zero between launches */                      \
  S(u64, node_sum) /* own slots */                                                                \
  S(u64, receive)  /* what each other node sends: a bank of tiles a node */                       \
  S(u64, out)      /* the result, row-major, ldb */                                               \
  S(i32, m)                                                                                       \
  S(i32, n)                                                                                       \
  S(i32, k)                                                                                       \
  S(i32, lda)      /* elements, multiples of 8; what is beyond k or n is zero */                  \
  S(i32, ldb)                                                                                     \
  S(i32, chunk_tiles)                                                                             \
  S(i32, slots)    /* most tiles that a rank sums for its node: the same on all ranks */          \
  S(i32, reduction) /* Summation */

namespace mk {

MK_STRUCT(Params, MK_REDUCTION_PARAMS)

enum FlagKind : u32 { ready, arrived, credit, finished };

enum class Summation : i32 { ordered = 0, atomic = 1 };

// The part of C that a tile covers; cols may include padding of the row.
struct Place {
  i64 row, column;
  i32 rows, cols;
};

// Where things are, from the parameters alone. A kernel's Map adds what its tiles are.
struct ReductionMap {
  const Params& p;

  template <class T> T* at(i32 local_rank, u64 offset) const { return reinterpret_cast<T*>(p.heap[local_rank] + offset); }
  bf16* partial(i32 local_rank, i32 tile) const { return at<bf16>(local_rank, p.partial) + tile * kTileElements; }
  bf16* accumulator(i32 local_rank, i32 slot) const { return at<bf16>(local_rank, p.accumulator) + slot * kTileElements; }
  bf16* network_tile(u64 buffer, i64 index) const { return reinterpret_cast<bf16*>(p.network + buffer) + index * kTileElements; }

  bool is_atomic() const { return Summation(p.reduction) == Summation::atomic; }

  // Row and column of tiles. The columns of a window end with the row's padding, so that they are a multiple of 8.
  Place place_at(i64 first_row, i64 end_row, i32 column) const {
    const i64 first_column = i64(column) * kTileN;
    return {first_row, first_column, i32(end_row - first_row < kTileM ? end_row - first_row : kTileM),
            i32(p.ldb - first_column < kTileN ? p.ldb - first_column : kTileN)};
  }

  // Every node starts with another one, so that they do not all send to the same.
  i32 peer(i32 step) const { return (p.node + step) % p.nodes; }

  // A receive buffer has a bank for each other node.
  i64 bank(i32 from_node, i32 at_node) const { return from_node < at_node ? from_node : from_node - 1; }

  // Control words of the heap: flags that ranks of the node set, every kind consecutive, then counters.
  // Control words of the network region, which comes first in it: flags that the proxy sets.
  i64 flag_index(FlagKind kind, i32 major) const {
    switch (kind) {
      case ready: return i64(major) * p.local_ranks;
      case finished: return i64(p.slots) * p.local_ranks;
      case arrived: return p.nodes - 1 + i64(major) * p.nodes;
      default: return 0;
    }
  }
  i64 flag_words() const { return flag_index(finished, 0) + p.local_ranks; }

  // What the ranks of the node tell `local_rank`, one flag each.
  Flags told(i32 local_rank, FlagKind kind, i32 major) const {
    return {at<u64>(local_rank, p.control_offset) + flag_index(kind, major), kind, u32(major * p.local_ranks), p.local_ranks};
  }
  // What the nodes tell this rank: a chunk has arrived, from each node; all is consumed, from each other node.
  Flags received(FlagKind kind, i32 major) const {
    return {reinterpret_cast<u64*>(p.network) + flag_index(kind, major), kind, u32(major * p.nodes),
            kind == arrived ? p.nodes : p.nodes - 1};
  }

  // Counters follow the flags, then the queue's heads and one counter for each chunk of own slots.
  struct Counters {
    ControllerWords controller;
    u64 compute_tickets, local_tickets, receive_tickets;
    u64 finished;    // what this rank owes its node; the last is followed by the flag of that name
    u64 received;    // tiles whose node sums are consumed
    u64 queue_full;  // pushes that found their ring full
    u64 port;        // pacing: until when the NVLink port is taken
  };
  Counters& counters() const {
    return *reinterpret_cast<Counters*>(at<u64>(p.local_rank, p.control_offset) + flag_words());
  }
  u64* queue_heads() const { return reinterpret_cast<u64*>(&counters() + 1); }
  u64* summed(i32 chunk) const { return queue_heads() + p.rings + chunk; }  // tiles of a chunk in the node sum

 protected:
  i64 control_bytes_of(i32 own_chunks) const {
    return i64(sizeof(Counters)) + (flag_words() + p.rings + own_chunks) * i64(sizeof(u64));
  }
  i64 network_control_bytes_of(i32 arriving_chunks) const {
    return flag_index(arrived, arriving_chunks) * i64(sizeof(u64));
  }
};

// A Map has also:
//   tiles(), nth(ticket)               tiles that a rank computes, and the order in which all ranks of its node do so
//   place(tile), owner(tile), slot(tile)   its part of C; the local rank that sums it; where it stands among that rank's
//   own_tiles(), own_slot(ticket)      this rank's slots, and the order in which they become ready
//   received_tiles()                   receive tasks of this rank: each has a flag `arrived` for chunk_tiles of them
//   control_bytes(), network_control_bytes()
template <class Map> struct Reduction {
  Block& block;
  const Params& p;
  Map map;
  Controller controller;
  Trace trace;
  CommandQueue queue;
  u64 task_begin = 0;
  bool one_tile = false;   // compute is to come back after one
  bool stop = false;       // compute is to come back now
  bool exhausted = false;  // compute found no tile left
  bool gave_up = false;    // compute left a wait

  Reduction(Block& block_, const Params& p_)
      : block(block_), p(p_), map{p_},
        controller{&map.counters().controller, map.template at<HistoryRow>(p.local_rank, p.history_offset), p.history_capacity,
                   p.epoch, Policy(p.policy), p.blocks, p.comm_sms,
                   {0, u32(map.tiles()), u32(map.own_tiles()), 0, u32(map.received_tiles())}, now_ns(block_)},
        trace{map.template at<TraceEvent>(p.local_rank, p.trace_offset), p.trace_capacity},
        queue{reinterpret_cast<u64*>(p.ring_slots), reinterpret_cast<u64*>(p.ring_tails), map.queue_heads(),
              &map.counters().queue_full, p.rings, p.ring_depth} {}

  u64 now_value() const { return flag_value(p.epoch, 1); }

  void begin(Role role) {
    block.role = u32(role);
    task_begin = now_ns(block);
  }
  void end(Role role, i32 task) {
    const u64 now = now_ns(block);
    trace.add(block, role, task, task_begin, now);
    if (role != Role::send) controller.finished(block, role, now - task_begin);
  }

  // compute: the schedule that gemm_role runs

  bool next(i32& tile) {
    if (stop) return false;
    const i32 ticket = claim(block, &map.counters().compute_tickets, p.epoch);
    if (ticket >= map.tiles()) {
      exhausted = true;
      return false;
    }
    tile = map.nth(ticket);
    begin(Role::compute);
    return true;
  }

  GemmOperands operands(i32 tile) const {
    const Place place = map.place(tile);
    const bool adds = map.is_atomic();
    bf16* const c = adds ? map.accumulator(map.owner(tile), map.slot(tile)) : map.partial(p.local_rank, tile);
    return {map.template at<const bf16>(p.local_rank, p.a) + place.row * p.lda,
            map.template at<const bf16>(p.local_rank, p.b) + place.column,
            c, p.lda, p.ldb, kTileN, p.k, place.rows, place.cols,
            // What is outside of the matrix is zero: a partial has it, to a sum it adds nothing.
            adds ? place.rows : kTileM, adds ? place.cols : kTileN, tile, nullptr, adds};
  }

  // Pacing: the port has carried what was added at a peer.
  bool crossed(i32 tile) {
    if (!map.is_atomic() || map.owner(tile) == p.local_rank) return true;
    const Place place = map.place(tile);
    return carried({kTileN, place.rows, place.cols}, 1, now_ns(block));
  }

  void done(i32 tile) {
    if (!crossed(tile)) {
      stop = gave_up = true;
      return;
    }
    const i32 slot = map.slot(tile);
    signal<Scope::system>(block, map.told(map.owner(tile), ready, slot).at(p.local_rank), now_value());
    end(Role::compute, tile);
    stop = one_tile || controller.assign(block) != Role::compute;
  }

  Outcome compute(i32 tiles) {
    one_tile = tiles == 1;
    stop = false;
    gemm_role(block, *this);
    if (gave_up) return Outcome::aborted;
    return exhausted ? Outcome::exhausted : Outcome::yielded;
  }

  // communication

  bool can_lend() const { return true; }  // compute waits for nothing
  bool can_local(i32 task) {
    const Flags partials = map.told(p.local_rank, ready, map.own_slot(task));
    return reached_all<Scope::system>(block, partials, now_value());  // a look; the task waits
  }
  bool can_receive(i32 task) {
    return reached_all<Scope::system>(block, map.received(arrived, task / p.chunk_tiles), now_value());
  }

  // The rail peer of node `peer` gets `tiles` of the own node sum from `slot` on as tiles from `index` on of its bank of
  // `bank_tiles`, which are its chunk `chunk`.
  bool put(i32 peer, i32 slot, i32 bank_tiles, i32 index, i32 tiles, i32 chunk) {
    const i64 destination = map.bank(p.node, peer) * bank_tiles + index;
    return queue.push(block, {CommandOp::put, peer, u32(map.flag_index(arrived, chunk) + p.node),
                              i64(p.node_sum) + slot * kTileBytes, i64(p.receive) + destination * kTileBytes,
                              tiles * kTileBytes, u32(p.epoch)});
  }

  // To every other node: all that it sent here is consumed.
  bool give_credits() {
    for (i32 step = 1; step < p.nodes; ++step) {
      const i32 peer = map.peer(step);
      const u32 flag = u32(map.flag_index(credit, 0) + map.bank(p.node, peer));
      if (!queue.push(block, {CommandOp::put, peer, flag, 0, 0, 0, u32(p.epoch)})) return false;
    }
    return true;
  }

  // What an owner sums for its node: partial(0), partial(1), ... of a tile, and how many they are.
  i32 partials() const { return map.is_atomic() ? 1 : p.local_ranks; }
  const bf16* partial(i32 i, i32 tile, i32 slot) const {
    return map.is_atomic() ? map.accumulator(p.local_rank, slot) : map.partial(i, tile);
  }
  // They are read. Before `finished` is said: who has seen that may add again.
  void consumed(i32 slot, i32 rows, i32 cols) {
    if (map.is_atomic()) clear(block, rows, cols, map.accumulator(p.local_rank, slot));
  }

  // The task has read or written `copies` of a window at peers, since `since_ns`.
  bool carried(const Window& window, i32 copies, u64 since_ns) {
    const u64 bytes = u64(window.rows) * u64(window.cols) * sizeof(bf16);
    return pace(block, &map.counters().port, p.pace_fs_per_byte, u64(copies) * bytes, since_ns);
  }

  void say_finished() {
    for (i32 i = 0; i < p.local_ranks; ++i)
      signal<Scope::system>(block, map.told(i, finished, 0).at(p.local_rank), now_value());
  }
};

// `kernel` is a Reduction with local(i) and receive(i).
template <class Kernel> void run_reduction(Kernel& kernel) {
  Block& block = kernel.block;
  const Params& p = kernel.p;
  const i32 own = kernel.map.own_tiles();
  auto& counters = kernel.map.counters();
  const bool first = block.index == 0 && block.leader();
  if (first) kernel.controller.record(block);
  run_roles(block, kernel.controller, [&](i32 limit) { return kernel.compute(limit); },
            [&](bool may_lend) {
              return run_communication(block, kernel.controller, p.epoch, {&counters.local_tickets, own},
                                       {&counters.receive_tickets, kernel.map.received_tiles()}, kernel, may_lend);
            });
  if (block.index != 0 || aborted(block)) return;
  if (own == 0) kernel.say_finished();
  wait_all<Scope::system>(block, kernel.map.told(p.local_rank, finished, 0), kernel.now_value());
  if (first) kernel.controller.record(block);
}

}  // namespace mk
