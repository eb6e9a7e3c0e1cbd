// AllGather + GEMM, fused. The rows of A[M,K] are dealt out to the ranks, a shard each; every rank has a B[K,N] of its own
// and ends with its C[M,N] = A B, for which it gets all other shards.
//
// Shards travel as all_gather.h says, which has the protocol, its flags and why it cannot deadlock. Here a chunk is kTileM
// rows of a shard, the rows of a tile, and a strip p.strip_rows of them. Shards are gathered in `full`.
//
//   compute   makes tiles of C, own shard first, then in the order in which shards arrive; it waits for the tile's chunk
//
// Waits of compute add no circle: it waits only for what local and receive of other blocks and ranks do, which never wait
// for it. A block that is lent takes only a tile whose chunk is here.
#include "mk/all_gather.h"

#define AG_GEMM_PARAMS(S, A)                                                        \
  MK_ALL_GATHER_PARAMS(S, A)                                                        \
  S(u64, a)          /* offset in the heap: the own shard, row-major, lda */        \
  S(u64, b)          /* B, row-major, ldb */                                        \
  S(u64, full)       /* A, row-major, lda; the own shard's place stays empty */     \
  S(u64, out)        /* the result, row-major, ldb */                               \
  S(i32, m)                                                                         \
  S(i32, n)                                                                         \
  S(i32, k)                                                                         \
  S(i32, lda)        /* elements, multiples of 8; what is beyond k or n is zero */  \
  S(i32, ldb)                                                                       \
  S(i32, shard_rows) /* of each rank, as far as there are rows left */              \
  S(i32, strip_rows) /* divides kTileM */                                           \
  S(i32, reserved)

namespace mk {

MK_STRUCT(Params, AG_GEMM_PARAMS)

// Where things are, from the parameters alone.
struct Map : AllGatherMap<Map, Params> {
  i32 rows(i32 shard) const {
    const i64 left = p.m - i64(shard) * p.shard_rows;
    return left < 0 ? 0 : left < p.shard_rows ? i32(left) : p.shard_rows;
  }
  i32 rows_of_chunk(i32 shard, i32 chunk) const { return least(rows(shard) - chunk * kTileM, kTileM); }

  using Order = ShardByShard;
  i32 strips(i32 shard) const { return ceil_div(rows(shard), p.strip_rows); }
  i32 most_strips() const { return ceil_div(p.shard_rows, p.strip_rows); }
  i32 strips_of_chunk() const { return kTileM / p.strip_rows; }
  i32 rows_of_strip(i32 shard, i32 strip) const { return least(rows(shard) - strip * p.strip_rows, p.strip_rows); }

  // Rows lie in a chunk as they do in A.
  i64 row_bytes() const { return i64(p.lda) * i64(sizeof(bf16)); }
  i64 slot_bytes() const { return kTileM * row_bytes(); }
  i64 chunk_bytes(i32 shard, i32 chunk) const { return rows_of_chunk(shard, chunk) * row_bytes(); }
  ByteRange bytes_of_strip(i32 shard, i32 strip) const {
    const i64 begin = strip * p.strip_rows % kTileM * row_bytes();
    return {begin, begin + rows_of_strip(shard, strip) * row_bytes()};
  }
  bf16* own_row(i64 row) const { return at<bf16>(p.local_rank, p.a) + row * p.lda; }
  bf16* gathered_row(i32 local_rank, i32 shard, i64 row) const {
    return at<bf16>(local_rank, p.full) + (i64(shard) * p.shard_rows + row) * p.lda;
  }

  // Tiles, in the order of tickets: the own shard; what else the node has; then each hop of the ring. The ranks of a node
  // gather alike, so chunks of their shards take turns. Every shard counts most_chunks(), of which some may be empty.
  struct Place {
    i32 shard, chunk, column;
  };
  i32 columns() const { return ceil_div(p.n, kTileN); }
  i32 cols_of(i32 column) const { return least(p.ldb - column * kTileN, kTileN); }
  i32 tickets() const { return p.ranks * most_chunks() * columns(); }
  i32 tiles() const { return (p.m / p.shard_rows * most_chunks() + ceil_div(p.m % p.shard_rows, kTileM)) * columns(); }
  Place place(i32 ticket) const {
    const i32 shard_tiles = most_chunks() * columns(), hop = ticket / (p.local_ranks * shard_tiles);
    i32 rest = ticket - hop * p.local_ranks * shard_tiles, shards = p.local_ranks, first = 0;
    if (hop == 0 && rest < shard_tiles) {
      shards = 1;
    } else if (hop == 0) {
      rest -= shard_tiles;
      shards -= 1;
      first = 1;
    }
    constexpr i32 kGroup = 8;
    const TileOrder order{shards * most_chunks(), columns(), kGroup};
    const i32 row = order.row(rest), local_rank = (p.local_rank + first + row % shards) % p.local_ranks;
    return {shard((p.node - hop + p.nodes) % p.nodes, local_rank), row / shards, order.column(rest)};
  }
};

struct AgGemm : AllGather<AgGemm, Map, Params> {
  static constexpr bool kOwnShardFirst = true;  // compute has it first, and the link to the next node is busy with it

  bool lent = false;       // compute may take a tile only if it need not wait, and is to come back after it
  bool stop = false;       // compute is to come back now
  bool exhausted = false;  // compute found no tile left
  bool gave_up = false;    // compute gave up a wait

  AgGemm(Block& block_, const Params& p_) : AllGather(block_, p_) {
    controller.total[u32(Role::compute)] = u32(map.tiles());
    controller.after = 1;
  }

  // compute: the schedule that gemm_role runs

  bool is_own(const Map::Place& place) const { return place.shard == p.rank; }
  bool is_empty(const Map::Place& place) const { return place.chunk >= map.chunks(place.shard); }
  Flags input(const Map::Place& place) const { return map.gathered_at(p.local_rank, place.shard, place.chunk, 1); }

  bool is_ready(i32 ticket) {
    const Map::Place place = map.place(ticket);
    return is_own(place) || is_empty(place) || reached_all<Scope::system>(block, input(place), now_value());
  }

  bool can_lend() {
    const i32 ticket = peek(block, &map.counters().compute_tickets, p.epoch);
    return ticket >= map.tickets() || is_ready(ticket);
  }

  bool next(i32& ticket) {
    block.role = u32(Role::compute);
    u64* tickets = &map.counters().compute_tickets;
    while (!stop) {
      ticket = lent ? peek(block, tickets, p.epoch) : claim(block, tickets, p.epoch);
      if (ticket >= map.tickets()) {
        exhausted = true;
        return false;
      }
      if (lent && !(is_ready(ticket) && claim_if(block, tickets, p.epoch, ticket))) return false;
      const Map::Place place = map.place(ticket);
      if (is_empty(place)) continue;
      if (!lent && !is_own(place) && !wait_all<Scope::system>(block, input(place), now_value())) {
        gave_up = true;
        return false;
      }
      begin(Role::compute);
      return true;
    }
    return false;
  }

  GemmOperands operands(i32 ticket) const {
    const Map::Place place = map.place(ticket);
    const i64 row = i64(place.chunk) * kTileM, column = i64(place.column) * kTileN;
    const i32 rows = map.rows_of_chunk(place.shard, place.chunk), cols = map.cols_of(place.column);
    return {is_own(place) ? map.own_row(row) : map.gathered_row(p.local_rank, place.shard, row),
            map.at<const bf16>(p.local_rank, p.b) + column,
            map.at<bf16>(p.local_rank, p.out) + (i64(place.shard) * p.shard_rows + row) * p.ldb + column,
            p.lda, p.ldb, p.ldb, p.k, rows, cols, rows, cols, ticket};
  }

  void done(i32 ticket) {
    end(Role::compute, ticket);
    count(Role::compute, task_begin);
    stop = lent || (controller.assign(block) != Role::compute && !all_claimed());
  }

  Outcome compute(i32 limit) {
    lent = limit == 1;
    stop = false;
    gemm_role(block, *this);
    if (gave_up) return Outcome::aborted;
    if (!exhausted) return Outcome::yielded;
    return all_claimed() ? Outcome::finished : Outcome::exhausted;
  }

  // communication

  void copy_own(i32 strip, i32 peers, bf16* outbox) {
    copy_strip(p.rank, strip, map.own_row(i64(strip) * p.strip_rows), peers, outbox);
  }
  void copy_arrived(i32 shard, i32 strip, const bf16* inbox, bf16* outbox) {
    copy_strip(shard, strip, inbox, p.local_ranks, outbox);
  }

  // To the first `ranks` peers, and to `outbox` if there is one.
  void copy_strip(i32 shard, i32 strip, const bf16* source, i32 ranks, bf16* outbox) {
    const Strip what{p.lda, p.lda, map.rows_of_strip(shard, strip), p.lda};
    copy(block, what, source, ranks + (outbox ? 1 : 0), [&](i32 i) {
      return i < ranks ? map.gathered_row(peer(i), shard, i64(strip) * p.strip_rows) : outbox;
    });
  }
};

void ag_gemm(Block& block, const Params& p) {
  AgGemm kernel(block, p);
  run_all_gather(kernel);
}

}  // namespace mk

MK_KERNEL(ag_gemm, Params, AG_GEMM_PARAMS, MK_ALL_GATHER_FLAGS, ag_gemm, Map)
