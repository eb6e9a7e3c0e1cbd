// GEMM + AllReduce, fused. Every rank has A[M,K] and B[K,N] of its own; all ranks end with the sum of the products.
//
//   compute   makes tiles of the rank's own product as bf16 partials and tells each tile's owner, a rank of its node
//   local     the owner sums the partials of its node's ranks, in rank order, in fp32
//               one node:   rounds once and writes the result to every rank of the node
//               more nodes: rounds to the node sum; whoever completes a chunk also does
//   send        one command per other node: the chunk crosses the network once, to the rail peer
//   receive   sums the node sums of a tile in node order, in fp32, rounds once, writes to every rank of the node
//
// Tiles are numbered in the order in which all ranks compute them; `chunk_tiles` of them make a chunk, and chunk c belongs
// to local rank c % G of each node. A rank's own tiles have slots 0, 1, ... in that order.
//
//   flag      writer                         reader              scope    says
//   ready     compute, rank of the node      local, owner        system   the rank's partial of a slot is written
//   arrived   proxy of the rail peer         receive             system   a node's sum of a chunk is here
//             (own node: local)                                  (gpu)
//   credit    proxy of the rail peer         local               system   the node has consumed all that was sent to it in
//                                                                         that epoch; the next may overwrite
//   finished  owner, rank of the node        exit                system   the owner has written its whole share here
//
// No deadlock: compute waits for nothing; local waits for compute, and for the credits of the launch before, which that
// launch gives without waiting for this one; send waits for the proxy, which waits for no block; exit waits for all of
// these. While local tasks are left, a block turns to receive only when it has seen the next one's input. Another block
// may claim that one first and leave it to wait for a later one; but who claimed what was seen does not wait, and comes
// back to look for more, so on every rank some block is left that works on.
#include "mk/mk.h"

#define GEMM_AR_FLAGS(F) F(ready) F(arrived) F(credit) F(finished)

#define GEMM_AR_PARAMS(S, A)                                                                      \
  MK_LAUNCH_PARAMS(S, A)                                                                          \
  S(u64, a)        /* offset in the heap: A, row-major, lda */                                    \
  S(u64, b)        /* B, row-major, ldb */                                                        \
  S(u64, partial)  /* own product, one tile after another */                                      \
  S(u64, node_sum) /* own slots */                                                                \
  S(u64, receive)  /* own slots, once per other node */                                              \
  S(u64, out)      /* the result, row-major, ldb */                                               \
  S(i32, m)                                                                                       \
  S(i32, n)                                                                                       \
  S(i32, k)                                                                                       \
  S(i32, lda)      /* elements, multiples of 8; what is beyond k or n is zero */                  \
  S(i32, ldb)                                                                                     \
  S(i32, chunk_tiles)                                                                             \
  S(i32, slots)    /* most tiles that a rank owns: the same on all ranks */                       \
  S(i32, reserved)

namespace mk {

MK_STRUCT(Params, GEMM_AR_PARAMS)

enum FlagKind : u32 { ready, arrived, credit, finished };

// Where things are, from the parameters alone.
struct Map {
  const Params& p;

  i32 tiles() const { return ceil_div(p.m, kTileM) * ceil_div(p.n, kTileN); }
  i32 owner(i32 tile) const { return tile / p.chunk_tiles % p.local_ranks; }
  i32 slot(i32 tile) const { return tile / p.chunk_tiles / p.local_ranks * p.chunk_tiles + tile % p.chunk_tiles; }
  i32 tile(i32 slot) const {
    return (slot / p.chunk_tiles * p.local_ranks + p.local_rank) * p.chunk_tiles + slot % p.chunk_tiles;
  }
  i32 chunk_size(i32 chunk) const {  // tiles in an own chunk
    const i32 left = tiles() - tile(chunk * p.chunk_tiles);
    return left < p.chunk_tiles ? left : p.chunk_tiles;
  }
  i32 own_tiles() const {
    const i32 cycle = p.local_ranks * p.chunk_tiles;
    const i32 rest = tiles() % cycle - p.local_rank * p.chunk_tiles;
    return tiles() / cycle * p.chunk_tiles + (rest < 0 ? 0 : rest < p.chunk_tiles ? rest : p.chunk_tiles);
  }
  i32 chunks() const { return ceil_div(p.slots, p.chunk_tiles); }

  // Groups of eight rows of tiles are walked column by column, so that concurrent tiles share operands in L2.
  i32 row(i32 tile) const {
    const i32 group = tile / (kGroup * columns()), height = group_height(group);
    return group * kGroup + (tile - group * kGroup * columns()) % height;
  }
  i32 column(i32 tile) const {
    const i32 group = tile / (kGroup * columns()), height = group_height(group);
    return (tile - group * kGroup * columns()) / height;
  }
  i32 rows_of(i32 tile) const { return least(p.m - row(tile) * kTileM, kTileM); }
  i32 cols_of(i32 tile) const { return least(p.ldb - column(tile) * kTileN, kTileN); }

  template <class T> T* at(i32 local_rank, u64 offset) const { return reinterpret_cast<T*>(p.heap[local_rank] + offset); }
  bf16* partial(i32 local_rank, i32 tile) const { return at<bf16>(local_rank, p.partial) + tile * kTileElements; }
  bf16* network_tile(u64 buffer, i64 slot) const { return reinterpret_cast<bf16*>(p.network + buffer) + slot * kTileElements; }

  // Every node starts with another one, so that they do not all send to the same.
  i32 peer(i32 step) const { return (p.node + step) % p.nodes; }

  // A receive buffer has a bank of slots for each other node.
  i64 bank(i32 from_node, i32 at_node) const { return from_node < at_node ? from_node : from_node - 1; }

  // Control words of the heap: flags that ranks of the node set, every kind consecutive, then counters.
  // Control words of the network region, which comes first in it: flags that the proxy sets.
  i64 flag_index(FlagKind kind, i32 major) const {
    switch (kind) {
      case ready: return i64(major) * p.local_ranks;
      case finished: return i64(p.slots) * p.local_ranks;
      case arrived: return i64(major) * p.nodes;
      default: return i64(chunks()) * p.nodes;
    }
  }
  i64 flag_words() const { return flag_index(finished, 0) + p.local_ranks; }
  i64 network_control_bytes() const { return (flag_index(credit, 0) + p.nodes - 1) * i64(sizeof(u64)); }

  // What the ranks of the node tell `local_rank`, one flag each.
  Flags told(i32 local_rank, FlagKind kind, i32 major) const {
    return {at<u64>(local_rank, p.control_offset) + flag_index(kind, major), kind, u32(major * p.local_ranks), p.local_ranks};
  }
  // What the nodes tell this rank: a chunk has arrived, from each node; all is consumed, from each other node.
  Flags received(FlagKind kind, i32 major) const {
    return {reinterpret_cast<u64*>(p.network) + flag_index(kind, major), kind, u32(major * p.nodes),
            kind == arrived ? p.nodes : p.nodes - 1};
  }

  // Counters follow the flags, then the queue's heads and one counter for each own chunk.
  struct Counters {
    ControllerWords controller;
    u64 compute_tickets, local_tickets, receive_tickets;
    u64 broadcast;   // own tiles that all ranks of the node have
    u64 received;    // own tiles whose node sums are consumed
    u64 queue_full;  // pushes that found their ring full
    u64 port;        // pacing: until when the NVLink port is taken
  };
  Counters& counters() const {
    return *reinterpret_cast<Counters*>(at<u64>(p.local_rank, p.control_offset) + flag_words());
  }
  u64* queue_heads() const { return reinterpret_cast<u64*>(&counters() + 1); }
  u64* summed(i32 chunk) const { return queue_heads() + p.rings + chunk; }  // tiles of a chunk in the node sum
  i64 control_bytes() const {
    return i64(sizeof(Counters)) + (flag_words() + p.rings + chunks()) * i64(sizeof(u64));
  }

 private:
  static constexpr i32 kGroup = 8;
  i32 columns() const { return ceil_div(p.n, kTileN); }
  i32 group_height(i32 group) const { return least(ceil_div(p.m, kTileM) - group * kGroup, kGroup); }
  static i32 least(i32 a, i32 b) { return a < b ? a : b; }
};

struct GemmAr {
  Block& block;
  const Params& p;
  Map map;
  Controller& controller;
  Trace trace;
  CommandQueue queue;
  u64 task_begin = 0;
  bool one_tile = false;   // compute is to come back after one
  bool stop = false;       // compute is to come back now
  bool exhausted = false;  // compute found no tile left

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
    tile = claim(block, &map.counters().compute_tickets, p.epoch);
    if (tile >= map.tiles()) {
      exhausted = true;
      return false;
    }
    begin(Role::compute);
    return true;
  }

  GemmOperands operands(i32 tile) const {
    const i32 row = map.row(tile), column = map.column(tile);
    return {map.at<const bf16>(p.local_rank, p.a) + i64(row) * kTileM * p.lda,
            map.at<const bf16>(p.local_rank, p.b) + i64(column) * kTileN,
            map.partial(p.local_rank, tile), p.lda, p.ldb, p.k, map.rows_of(tile), map.cols_of(tile), tile};
  }

  void done(i32 tile) {
    const i32 slot = map.slot(tile);
    signal<Scope::system>(block, map.told(map.owner(tile), ready, slot).at(p.local_rank), now_value());
    end(Role::compute, tile);
    stop = one_tile || controller.assign(block) != Role::compute;
  }

  Outcome compute(i32 tiles) {
    one_tile = tiles == 1;
    stop = false;
    gemm_role(block, *this);
    return exhausted ? Outcome::exhausted : Outcome::yielded;
  }

  // communication

  // Receives come first, since their input is there and nothing else ends the launch. A block that may be lent claims only
  // when something is ready; one that may not, because no tile is left or the partition is fixed, claims and waits.
  Outcome communicate(bool may_lend) {
    const i32 own = map.own_tiles();
    while (!may_lend || controller.assign(block) == Role::local) {
      if (p.nodes > 1) {
        const i32 next = peek(block, &map.counters().receive_tickets, p.epoch);
        if (next < own && reached_all<Scope::system>(block, map.received(arrived, next / p.chunk_tiles), now_value())) {
          const i32 slot = claim(block, &map.counters().receive_tickets, p.epoch);
          if (slot < own && !receive(slot)) return Outcome::aborted;
          continue;
        }
      }
      if (may_lend) {
        const i32 next = peek(block, &map.counters().local_tickets, p.epoch);
        if (next >= own && p.nodes == 1) return Outcome::exhausted;
        if (next >= own || !reached_all<Scope::system>(block, map.told(p.local_rank, ready, next), now_value())) return Outcome::yielded;
      }
      i32 slot = claim(block, &map.counters().local_tickets, p.epoch);
      if (slot < own) {
        if (!local(slot)) return Outcome::aborted;
        continue;
      }
      if (may_lend) continue;
      if (p.nodes == 1) return Outcome::exhausted;
      slot = claim(block, &map.counters().receive_tickets, p.epoch);
      if (slot >= own) return Outcome::exhausted;
      if (!receive(slot)) return Outcome::aborted;
    }
    return Outcome::yielded;
  }

  bool local(i32 slot) {
    block.role = u32(Role::local);
    if (!wait_all<Scope::system>(block, map.told(p.local_rank, ready, slot), now_value())) return false;
    if (p.nodes > 1 && !wait_all<Scope::system>(block, map.received(credit, 0), flag_value(p.epoch - 1, 0))) return false;
    begin(Role::local);
    const i32 tile = map.tile(slot);
    const auto partial = [&](i32 i) -> const bf16* { return map.partial(i, tile); };
    if (p.nodes == 1) {
      if (!to_node(tile, p.local_ranks, partial)) return false;
      end(Role::local, slot);
      return true;
    }
    const Window window{kTileN, kTileM, kTileN};
    reduce(block, window, p.local_ranks, partial, 1, [&](i32) { return map.network_tile(p.node_sum, slot); });
    if (!carried(window, p.local_ranks - 1)) return false;
    end(Role::local, slot);
    const i32 chunk = slot / p.chunk_tiles;
    if (!completes<Scope::gpu>(block, map.summed(chunk), p.epoch, u32(map.chunk_size(chunk)))) return true;
    signal<Scope::gpu>(block, map.received(arrived, chunk).at(p.node), now_value());
    return send(chunk);
  }

  bool send(i32 chunk) {
    begin(Role::send);
    const i64 first = i64(chunk) * p.chunk_tiles * kTileBytes;
    for (i32 step = 1; step < p.nodes; ++step) {
      const i32 peer = map.peer(step);
      const i64 bank = map.bank(p.node, peer) * p.slots * kTileBytes;
      if (!queue.push(block, {CommandOp::put, peer, u32(map.flag_index(arrived, chunk) + p.node), i64(p.node_sum) + first,
                              i64(p.receive) + bank + first, map.chunk_size(chunk) * kTileBytes, u32(p.epoch)}))
        return false;
    }
    end(Role::send, chunk);
    return true;
  }

  bool receive(i32 slot) {
    block.role = u32(Role::receive);
    if (!wait_all<Scope::system>(block, map.received(arrived, slot / p.chunk_tiles), now_value())) return false;
    begin(Role::receive);
    const auto node_sum = [&](i32 node) -> const bf16* {
      return node == p.node ? map.network_tile(p.node_sum, slot)
                            : map.network_tile(p.receive, map.bank(node, p.node) * p.slots + slot);
    };
    if (!to_node(map.tile(slot), p.nodes, node_sum)) return false;
    end(Role::receive, slot);
    if (!completes<Scope::gpu>(block, &map.counters().received, p.epoch, u32(map.own_tiles()))) return true;
    for (i32 step = 1; step < p.nodes; ++step) {
      const i32 peer = map.peer(step);
      const u32 flag = u32(map.flag_index(credit, 0) + map.bank(p.node, peer));
      if (!queue.push(block, {CommandOp::put, peer, flag, 0, 0, 0, u32(p.epoch)})) return false;
    }
    return true;
  }

  // The rounded sum goes to every rank of the node; whoever writes the owner's last tile says so to all.
  template <class Source> bool to_node(i32 tile, i32 sources, Source source) {
    const i64 first = i64(map.row(tile)) * kTileM * p.ldb + i64(map.column(tile)) * kTileN;
    const Window window{p.ldb, map.rows_of(tile), map.cols_of(tile)};
    reduce(block, window, sources, source, p.local_ranks, [&](i32 i) { return map.at<bf16>(i, p.out) + first; });
    // On one node the sources are the peers' partials; else they came over the network.
    if (!carried(window, (p.local_ranks - 1) * (p.nodes == 1 ? 2 : 1))) return false;
    if (completes<Scope::system>(block, &map.counters().broadcast, p.epoch, u32(map.own_tiles()))) say_finished();
    return true;
  }

  // The task has read or written `copies` of a window at peers.
  bool carried(const Window& window, i32 copies) {
    const u64 bytes = u64(window.rows) * u64(window.cols) * sizeof(bf16);
    return pace(block, &map.counters().port, p.pace_fs_per_byte, u64(copies) * bytes, task_begin);
  }

  void say_finished() {
    for (i32 i = 0; i < p.local_ranks; ++i)
      signal<Scope::system>(block, map.told(i, finished, 0).at(p.local_rank), now_value());
  }
};

void gemm_ar(Block& block, const Params& p) {
  const Map map{p};
  const u32 tiles = u32(map.tiles()), own = u32(map.own_tiles());
  Controller controller{&map.counters().controller, map.at<HistoryRow>(p.local_rank, p.history_offset), p.history_capacity, p.epoch,
                        Policy(p.policy), p.blocks, p.comm_sms, {0, tiles, own, 0, p.nodes > 1 ? own : 0}, now_ns(block)};
  GemmAr kernel{block, p, map, controller,
                {map.at<TraceEvent>(p.local_rank, p.trace_offset), p.trace_capacity},
                {reinterpret_cast<u64*>(p.ring_slots), reinterpret_cast<u64*>(p.ring_tails), map.queue_heads(),
                 &map.counters().queue_full, p.rings, p.ring_depth}};
  const bool first = block.index == 0 && block.leader();
  if (first) controller.record(block);
  run_roles(block, controller, [&](i32 limit) { return kernel.compute(limit); },
            [&](bool may_lend) { return kernel.communicate(may_lend); });
  if (block.index != 0 || aborted(block)) return;
  if (own == 0) kernel.say_finished();
  wait_all<Scope::system>(block, map.told(p.local_rank, finished, 0), kernel.now_value());
  if (first) controller.record(block);
}

}  // namespace mk

MK_KERNEL(gemm_ar, Params, GEMM_AR_PARAMS, GEMM_AR_FLAGS, gemm_ar, Map)
