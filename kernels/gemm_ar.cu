// GEMM + AllReduce, fused. Every rank has A[M,K] and B[K,N] of its own; all ranks end with the sum of the products.
//
//   compute   makes tiles of the rank's own product as bf16 partials and tells each tile's owner, a rank of its node
//   local     the owner sums the partials of its node's ranks, in rank order, in fp32, or reads the sum (mk/reduction.h)
//               one node:   rounds once and writes the result to every rank of the node
//               more nodes: rounds to the node sum; whoever completes a chunk also does
//   send        one command per other node: the chunk crosses the network once, to the rail peer
//   receive   sums the node sums of a tile in node order, in fp32, rounds once, writes to every rank of the node
//
// Tiles are numbered in the order in which all ranks compute them; `chunk_tiles` of them make a chunk, and chunk c belongs
// to local rank c % G of each node. A rank's own tiles have slots 0, 1, ... in that order.
//
//   flag      writer                         reader              scope    says
//   ready     compute, rank of the node      local, owner        system   the rank's partial of a slot is written or added
//   arrived   proxy of the rail peer         receive             system   a node's sum of a chunk is here
//             (own node: local)                                  (gpu)
//   credit    proxy of the rail peer         local               system   the node has consumed all that was sent to it in
//                                                                         that epoch; the next may overwrite
//   finished  owner, rank of the node        exit                system   the owner has written its whole share here
//
// No deadlock: compute waits for nothing; local waits for compute, and for the credits of the launch before, which that
// launch gives without waiting for this one; send waits for the proxy, which waits for no block; exit waits for all of
// these. run_communication keeps a block free for local tasks while there are any.
#include "mk/reduction.h"

namespace mk {

struct Map : ReductionMap {
  TileOrder order() const { return {ceil_div(p.m, kTileM), ceil_div(p.n, kTileN), 8}; }
  i32 tiles() const { return order().tiles(); }
  i32 nth(i32 ticket) const { return ticket; }
  Place place(i32 tile) const { return place_at(i64(order().row(tile)) * kTileM, p.m, order().column(tile)); }

  i32 owner(i32 tile) const { return tile / p.chunk_tiles % p.local_ranks; }
  i32 slot(i32 tile) const { return tile / p.chunk_tiles / p.local_ranks * p.chunk_tiles + tile % p.chunk_tiles; }
  i32 tile(i32 slot) const {
    return (slot / p.chunk_tiles * p.local_ranks + p.local_rank) * p.chunk_tiles + slot % p.chunk_tiles;
  }
  i32 own_tiles() const {
    const i32 cycle = p.local_ranks * p.chunk_tiles;
    const i32 rest = tiles() % cycle - p.local_rank * p.chunk_tiles;
    return tiles() / cycle * p.chunk_tiles + (rest < 0 ? 0 : least(rest, p.chunk_tiles));
  }
  i32 own_slot(i32 ticket) const { return ticket; }
  i32 received_tiles() const { return p.nodes > 1 ? own_tiles() : 0; }

  i32 chunks() const { return ceil_div(p.slots, p.chunk_tiles); }
  i32 chunk_size(i32 chunk) const { return least(tiles() - tile(chunk * p.chunk_tiles), p.chunk_tiles); }

  i64 control_bytes() const { return control_bytes_of(chunks()); }
  i64 network_control_bytes() const { return network_control_bytes_of(chunks()); }
};

struct GemmAr : Reduction<Map> {
  using Reduction::Reduction;

  bool local(i32 slot) {
    block.role = u32(Role::local);
    if (!wait_all<Scope::system>(block, map.told(p.local_rank, ready, slot), now_value())) return false;
    if (p.nodes > 1 && !wait_all<Scope::system>(block, map.received(credit, 0), flag_value(p.epoch - 1, 0))) return false;
    begin(Role::local);
    const i32 tile = map.tile(slot);
    const auto source = [&](i32 i) { return partial(i, tile, slot); };
    if (p.nodes == 1) {
      // The sources but one are the peers' partials.
      if (!to_node(tile, partials(), source, partials() - 1 + p.local_ranks - 1)) return false;
      const Place place = map.place(tile);
      consumed(slot, place.rows, place.cols);
      written();
      end(Role::local, slot);
      return true;
    }
    const Window window{kTileN, kTileM, kTileN};
    reduce(block, window, partials(), source, 1, [&](i32) { return map.network_tile(p.node_sum, slot); });
    if (!carried(window, partials() - 1, task_begin)) return false;
    consumed(slot, window.rows, window.cols);
    end(Role::local, slot);
    const i32 chunk = slot / p.chunk_tiles;
    if (!completes<Scope::gpu>(block, map.summed(chunk), p.epoch, u32(map.chunk_size(chunk)))) return true;
    signal<Scope::gpu>(block, map.received(arrived, chunk).at(p.node), now_value());
    return send(chunk);
  }

  bool send(i32 chunk) {
    begin(Role::send);
    const i32 first = chunk * p.chunk_tiles;
    for (i32 step = 1; step < p.nodes; ++step)
      if (!put(map.peer(step), first, p.slots, first, map.chunk_size(chunk), chunk)) return false;
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
    if (!to_node(map.tile(slot), p.nodes, node_sum, p.local_ranks - 1)) return false;
    written();
    end(Role::receive, slot);
    if (!completes<Scope::gpu>(block, &map.counters().received, p.epoch, u32(map.own_tiles()))) return true;
    return give_credits();
  }

  // The rounded sum goes to every rank of the node. `at_peers`: what of it is read from peers and written to peers.
  template <class Source> bool to_node(i32 tile, i32 sources, Source source, i32 at_peers) {
    const Place place = map.place(tile);
    const i64 first = place.row * p.ldb + place.column;
    const Window window{p.ldb, place.rows, place.cols};
    reduce(block, window, sources, source, p.local_ranks, [&](i32 i) { return map.at<bf16>(i, p.out) + first; });
    return carried(window, at_peers, task_begin);
  }

  // Whoever has written the owner's last tile says so to all ranks of the node.
  void written() {
    if (completes<Scope::system>(block, &map.counters().finished, p.epoch, u32(map.own_tiles()))) say_finished();
  }
};

void gemm_ar(Block& block, const Params& p) {
  GemmAr kernel(block, p);
  run_reduction(kernel);
}

}  // namespace mk

MK_KERNEL(gemm_ar, Params, MK_REDUCTION_PARAMS, MK_REDUCTION_FLAGS, gemm_ar, Map)
