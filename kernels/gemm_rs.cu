// GEMM + ReduceScatter, fused. Every rank has A[M,K] and B[K,N] of its own; rank r of W ends with its shard of the sum of
// the products: rows r S to (r + 1) S with S = ceil(M / W), as far as there are any.
//
//   compute   makes tiles of the rank's own product as bf16 partials and tells each tile's owner, a rank of its node
//   local     the owner sums the partials of its node's ranks, in rank order, in fp32, or reads the sum (mk/reduction.h)
//               one node:   rounds once and writes the result
//               more nodes: rounds to the node sum; whoever completes a chunk of another node's shard also does
//   send        one command: the chunk crosses the network once, to the rank whose shard it is
//   receive   sums the node sums of a tile of the own shard in node order, in fp32, rounds once, writes the result
//
// A shard is cut into tiles of its own, so that none belongs to two. Local rank l of each node owns the tiles of the shards
// of local rank l of all nodes; `chunk_tiles` tiles of a shard make a chunk. A node computes the shards of the next node
// first and its own last, so that what crosses the network is there when the last tiles are.
//
//   flag      writer                         reader              scope    says
//   ready     compute, rank of the node      local, owner        system   the rank's partial of a slot is written or added
//   arrived   proxy of the rail peer         receive             system   a node's sum of a chunk of this shard is here
//             (own node: local)                                  (gpu)
//   credit    proxy of the rail peer         local               system   that rank has consumed all that was sent to it in
//                                                                         that epoch; the next may overwrite
//   finished  owner, rank of the node        exit                system   the owner has read all partials that it reads here,
//                                                                         and cleared its sums of them
//
// No deadlock: compute waits for nothing; local waits for compute, and for the credit of the launch before, which that
// launch gives without waiting for this one; the send waits for the proxy, which waits for no block; exit waits for all of
// these. run_communication keeps a block free for local tasks while there are any.
#include "mk/reduction.h"

namespace mk {

// A shard has the number of its rank. The first shards are whole, one more may be cut, the others are empty. Tiles are
// numbered shard by shard. Slots are an owner's tiles node by node, `shard_tiles` each.
struct Map : ReductionMap {
  i32 shard_rows() const { return ceil_div(p.m, p.ranks); }
  i32 whole_shards() const { return p.m / shard_rows(); }
  i64 first_row(i32 shard) const { return i64(shard) * shard_rows(); }
  i64 end_row(i32 shard) const { return first_row(shard + 1) < p.m ? first_row(shard + 1) : p.m; }
  // The shards of a node are computed side by side, so together their groups are about eight rows high.
  TileOrder order(i32 shard) const {
    const i64 rows = end_row(shard) - first_row(shard);
    return {rows < 0 ? 0 : ceil_div(i32(rows), kTileM), ceil_div(p.n, kTileN), p.local_ranks < 8 ? 8 / p.local_ranks : 1};
  }
  i32 tiles_in(i32 shard) const { return order(shard).tiles(); }
  i32 shard_tiles() const { return tiles_in(0); }
  i32 tiles() const { return whole_shards() * shard_tiles() + tiles_in(whole_shards()); }

  // The shards of the next node come first, those of the own node last. The shards of a node take turns, tile by tile: to
  // begin with all of them, behind the end of the cut one the whole ones.
  i32 nth(i32 ticket) const {
    const i32 at = turned(ticket, p.local_ranks * shard_tiles(), tiles());
    const i32 first = at / (p.local_ranks * shard_tiles()) * p.local_ranks;
    const i32 whole = least(whole_shards() - first, p.local_ranks);
    const i32 cut = whole < p.local_ranks ? tiles_in(first + whole) : 0;
    const i32 i = at - first * shard_tiles(), together = cut * (whole + 1);
    if (i < together) return (first + i % (whole + 1)) * shard_tiles() + i / (whole + 1);
    return (first + (i - together) % whole) * shard_tiles() + cut + (i - together) / whole;
  }
  Place place(i32 tile) const {
    const i32 shard = tile / shard_tiles(), i = tile % shard_tiles();
    return place_at(first_row(shard) + i64(order(shard).row(i)) * kTileM, end_row(shard), order(shard).column(i));
  }

  i32 owner(i32 tile) const { return tile / shard_tiles() % p.local_ranks; }
  i32 slot(i32 tile) const { return tile / shard_tiles() / p.local_ranks * shard_tiles() + tile % shard_tiles(); }
  i32 node_of(i32 slot) const { return slot / shard_tiles(); }
  i32 shard_of(i32 slot) const { return node_of(slot) * p.local_ranks + p.local_rank; }
  i32 tile(i32 slot) const { return shard_of(slot) * shard_tiles() + slot % shard_tiles(); }
  i32 own_whole_shards() const { return (whole_shards() - p.local_rank + p.local_ranks - 1) / p.local_ranks; }
  i32 own_cut_shard() const { return own_whole_shards() * p.local_ranks + p.local_rank; }
  i32 own_tiles() const { return own_whole_shards() * shard_tiles() + tiles_in(own_cut_shard()); }
  i32 own_slot(i32 ticket) const { return turned(ticket, shard_tiles(), own_tiles()); }
  i32 received_tiles() const { return p.nodes > 1 ? tiles_in(p.rank) : 0; }

  i32 chunks_in(i32 shard) const { return ceil_div(tiles_in(shard), p.chunk_tiles); }
  i32 chunk_of(i32 slot) const { return slot % shard_tiles() / p.chunk_tiles; }  // in its shard
  i32 chunk_size(i32 shard, i32 chunk) const { return least(tiles_in(shard) - chunk * p.chunk_tiles, p.chunk_tiles); }
  i32 own_chunks() const { return own_whole_shards() * chunks_in(0) + chunks_in(own_cut_shard()); }

  Flags credit_of(i32 node) const {
    const Flag flag = received(credit, 0).at(i32(bank(node, p.node)));
    return {flag.word, flag.kind, flag.index, 1};
  }

  i64 control_bytes() const { return control_bytes_of(p.nodes * chunks_in(0)); }
  i64 network_control_bytes() const { return network_control_bytes_of(chunks_in(0)); }

 private:
  // Of `total` things, `of_node` for each node while there are any: the ticket-th if those of the next node come first.
  i32 turned(i32 ticket, i32 of_node, i32 total) const {
    const i32 at = ticket + least((p.node + 1) * of_node, total);
    return at < total ? at : at - total;
  }
};

struct GemmRs : Reduction<Map> {
  using Reduction::Reduction;

  bool local(i32 ticket) {
    block.role = u32(Role::local);
    const i32 slot = map.own_slot(ticket), node = map.node_of(slot);
    if (!wait_all<Scope::system>(block, map.told(p.local_rank, ready, slot), now_value())) return false;
    if (node != p.node && !wait_all<Scope::system>(block, map.credit_of(node), flag_value(p.epoch - 1, 0))) return false;
    begin(Role::local);
    const i32 tile = map.tile(slot);
    const Place place = map.place(tile);
    const Window window{p.nodes == 1 ? p.ldb : kTileN, place.rows, place.cols};
    reduce(block, window, partials(), [&](i32 i) { return partial(i, tile, slot); }, 1,
           [&](i32) { return p.nodes == 1 ? result(place) : map.network_tile(p.node_sum, slot); });
    if (!carried(window, partials() - 1, task_begin)) return false;
    consumed(slot, place.rows, place.cols);
    end(Role::local, slot);
    const i32 chunk = map.chunk_of(slot), size = map.chunk_size(map.shard_of(slot), chunk);
    if (!completes<Scope::gpu>(block, map.summed(node * map.chunks_in(0) + chunk), p.epoch, u32(size))) return true;
    if (node != p.node) {
      if (!send(node, chunk, size)) return false;
    } else if (p.nodes > 1) {
      signal<Scope::gpu>(block, map.received(arrived, chunk).at(p.node), now_value());
    }
    if (completes<Scope::gpu>(block, &map.counters().finished, p.epoch, u32(map.own_chunks()))) say_finished();
    return true;
  }

  bool send(i32 node, i32 chunk, i32 size) {
    begin(Role::send);
    const i32 first = chunk * p.chunk_tiles;
    if (!put(node, node * map.shard_tiles() + first, map.shard_tiles(), first, size, chunk)) return false;
    end(Role::send, node * map.chunks_in(0) + chunk);
    return true;
  }

  bool receive(i32 i) {
    block.role = u32(Role::receive);
    if (!wait_all<Scope::system>(block, map.received(arrived, i / p.chunk_tiles), now_value())) return false;
    begin(Role::receive);
    const i32 of_shard = map.shard_tiles(), slot = p.node * of_shard + i;
    const Place place = map.place(map.tile(slot));
    const auto node_sum = [&](i32 node) -> const bf16* {
      return node == p.node ? map.network_tile(p.node_sum, slot)
                            : map.network_tile(p.receive, map.bank(node, p.node) * of_shard + i);
    };
    reduce(block, {p.ldb, place.rows, place.cols}, p.nodes, node_sum, 1, [&](i32) { return result(place); });
    end(Role::receive, i);
    if (!completes<Scope::gpu>(block, &map.counters().received, p.epoch, u32(map.received_tiles()))) return true;
    return give_credits();
  }

  bf16* result(const Place& place) const {
    return map.at<bf16>(p.local_rank, p.out) + (place.row - map.first_row(p.rank)) * p.ldb + place.column;
  }
};

void gemm_rs(Block& block, const Params& p) {
  GemmRs kernel(block, p);
  run_reduction(kernel);
}

}  // namespace mk

MK_KERNEL(gemm_rs, Params, MK_REDUCTION_PARAMS, MK_REDUCTION_FLAGS, gemm_rs, Map)
