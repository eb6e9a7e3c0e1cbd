// Ring attention, fused. The positions of a sequence are dealt out to the ranks; every rank has the queries Q, keys K and
// values V of its own, and ends with the attention of its queries to all keys, for which it gets all other K and V.
//
// Keys and values travel as all_gather.h says, which has the protocol, its flags and why it cannot deadlock. Here a shard
// is the K and V of a rank, a strip the K and V of one tile of positions of one head, and a chunk p.chunk_tiles strips;
// strips follow each other head by head. Shards are gathered in `kv`.
//
//   compute   takes a tile of queries of one head past all keys that it sees: of the own shard, of those before it in its
//             node, then node by node backwards; it waits for their chunks. What it has seen stays in the block from its
//             first key to its last, so nothing is merged
//
// Causal attention gives each rank one piece of the first half of the sequence and one of the second, which makes work even.
// Pieces are cut into tiles like each other, so a tile of keys is seen by a tile of queries whole, not at all, or, if both
// are the same, up to the diagonal. What a tile of queries sees of a shard are its first tiles.
//
// Waits of compute add no circle: it waits only for what local and receive of other blocks and ranks do, which never wait
// for it. A block that is lent takes only queries whose keys are all here.
#include "mk/all_gather.h"
#include "mk/attention.h"

#define RING_ATTENTION_PARAMS(S, A)                                                             \
  MK_ALL_GATHER_PARAMS(S, A)                                                                    \
  S(u64, q)          /* offset in the heap: own queries, [b, h, rows, d] */                     \
  S(u64, k)          /* [b, g, rows, d] */                                                      \
  S(u64, v)                                                                                     \
  S(u64, kv)         /* all shards; in each, strip after strip, its K, then its V */            \
  S(u64, out)        /* like q */                                                               \
  S(i32, b)          /* batch */                                                                \
  S(i32, h)          /* heads of queries */                                                     \
  S(i32, g)          /* heads of keys; h / g consecutive heads of queries share one */          \
  S(i32, s)          /* positions, of all ranks */                                              \
  S(i32, d)          /* 64 or 128 */                                                            \
  S(i32, causal)                                                                                \
  S(i32, piece_rows) /* positions of a piece, as far as there are any left */                   \
  S(i32, chunk_tiles)

namespace mk {

MK_STRUCT(Params, RING_ATTENTION_PARAMS)

// Consecutive rows of a shard: of a strip, or of a tile of queries.
struct Rows {
  i32 head, first, count;
};

// Where things are, from the parameters alone. A shard is a piece, or, if causal, a low and a high one.
struct Map : AllGatherMap<Map, Params> {
  // Positions. Pieces are full before the last one that is not empty.
  i32 positions_before(i32 piece) const {
    const i64 full = i64(piece) * p.piece_rows;
    return full < p.s ? i32(full) : p.s;
  }
  i32 high_piece(i32 shard) const { return 2 * p.ranks - 1 - shard; }
  i32 rows_of_piece(i32 piece) const { return positions_before(piece + 1) - positions_before(piece); }
  i32 low_rows(i32 shard) const { return rows_of_piece(shard); }
  i32 high_rows(i32 shard) const { return p.causal ? rows_of_piece(high_piece(shard)) : 0; }
  i32 rows(i32 shard) const { return low_rows(shard) + high_rows(shard); }
  // Of all shards before.
  i32 rows_before(i32 shard) const {
    return positions_before(shard) + (p.causal ? p.s - positions_before(high_piece(shard) + 1) : 0);
  }

  // Tiles of a shard, of queries as of keys: the same rows in each head.
  i32 low_tiles(i32 shard) const { return ceil_div(low_rows(shard), kKeyRows); }
  i32 tiles(i32 shard) const { return low_tiles(shard) + ceil_div(high_rows(shard), kKeyRows); }
  Rows tile(i32 shard, i32 head, i32 tile) const {
    const i32 low = low_rows(shard), low_tiles = ceil_div(low, kKeyRows);
    const i32 first = tile < low_tiles ? tile * kKeyRows : low + (tile - low_tiles) * kKeyRows;
    return {head, first, least((tile < low_tiles ? low : low + high_rows(shard)) - first, kKeyRows)};
  }
  i32 key_heads() const { return p.b * p.g; }
  i32 query_heads() const { return p.b * p.h; }
  i32 tile_tasks() const { return query_heads() * tiles(p.rank); }

  // How many tiles of a shard's head a tile of the own queries sees: its first ones.
  i32 seen(i32 shard, i32 query_tile) const {
    if (!p.causal) return tiles(shard);
    const i32 low = low_tiles(p.rank), piece = query_tile < low ? p.rank : high_piece(p.rank);
    const i32 up_to = (query_tile < low ? query_tile : query_tile - low) + 1;
    if (shard >= piece) return shard == piece ? up_to : 0;
    const i32 high = high_piece(shard);
    return high >= piece ? low_tiles(shard) + (high == piece ? up_to : 0) : tiles(shard);
  }
  bool is_diagonal(i32 shard, i32 key_tile, i32 query_tile) const {
    return p.causal && shard == p.rank && key_tile == query_tile;
  }
  // By all tiles of the own queries. Tile t of piece c sees all of the pieces before and t + 1 of its own.
  i64 tiles_seen() const {
    const i64 full = ceil_div(p.piece_rows, kKeyRows);
    const auto of_piece = [&](i32 piece) {
      const i64 count = ceil_div(rows_of_piece(piece), kKeyRows);
      return count * piece * full + count * (count + 1) / 2;
    };
    if (p.causal) return query_heads() * (of_piece(p.rank) + of_piece(high_piece(p.rank)));
    return i64(tile_tasks()) * (p.s / p.piece_rows * full + ceil_div(p.s % p.piece_rows, kKeyRows));
  }

  // Strips, head by head: compute needs the same heads of all shards.
  using Order = ChunkByChunk;
  i32 strips(i32 shard) const { return key_heads() * tiles(shard); }
  i32 most_strips() const { return key_heads() * (1 + p.causal) * ceil_div(p.piece_rows, kKeyRows); }
  i32 strips_of_chunk() const { return p.chunk_tiles; }
  Rows strip(i32 shard, i32 strip) const {
    const i32 each = tiles(shard), head = strip / each;
    return tile(shard, head, strip - head * each);
  }

  // A position of a head takes 2 d elements; what comes before a strip in its shard.
  i64 row_bytes() const { return 2 * p.d * i64(sizeof(bf16)); }
  i64 elements_before(i32 shard, const Rows& r) const { return (i64(r.head) * rows(shard) + r.first) * 2 * p.d; }
  i64 bytes_before(i32 shard, i32 strip_) const {
    return strip_ == strips(shard) ? key_heads() * rows(shard) * row_bytes()
                                   : elements_before(shard, strip(shard, strip_)) * i64(sizeof(bf16));
  }
  i64 slot_bytes() const { return i64(p.chunk_tiles) * kKeyRows * row_bytes(); }
  i64 chunk_bytes(i32 shard, i32 chunk) const {
    const i32 first = chunk * p.chunk_tiles;
    return bytes_before(shard, first + strips_in_chunk(shard, chunk)) - bytes_before(shard, first);
  }
  ByteRange bytes_of_strip(i32 shard, i32 strip_) const {
    const i64 begin = bytes_before(shard, strip_) - bytes_before(shard, chunk_of_strip(strip_) * p.chunk_tiles);
    return {begin, begin + strip(shard, strip_).count * row_bytes()};
  }

  // Of K and V, and of Q and the result, in the rank's own buffers.
  i64 own(const Rows& r) const { return (i64(r.head) * rows(p.rank) + r.first) * p.d; }
  bf16* gathered_kv(i32 local_rank, i32 shard, const Rows& r) const {
    return at<bf16>(local_rank, p.kv) + i64(rows_before(shard)) * key_heads() * 2 * p.d + elements_before(shard, r);
  }
};

struct RingAttention : AllGather<RingAttention, Map, Params> {
  static constexpr bool kOwnShardFirst = false;  // compute needs the same head of all shards

  bool lent = false;       // compute may take queries only if it need not wait, and is to come back after them
  bool stop = false;       // compute is to come back now
  bool exhausted = false;  // compute found no queries left
  bool gave_up = false;    // compute gave up a wait

  // The tile of queries that is computed, and which keys come next.
  Rows queries_at = {};
  i32 query_tile = 0, key_head = 0;
  i32 step = 0, shard = 0;         // of the ring
  i32 key_tile = 0, key_tiles = 0;
  i32 tiles_here = 0;              // so many of these are known to be here
  u64 resumed = 0, busy = 0;       // without waits, for the controller
  u32 uncounted = 0;               // key tiles that it does not know of

  RingAttention(Block& block_, const Params& p_) : AllGather(block_, p_) {
    controller.total[u32(Role::compute)] = u32(map.tiles_seen());
    // A task has to come to the keys that arrive last.
    if (map.tile_tasks() > 0) controller.after = u32(2 * map.tiles_seen() / map.tile_tasks());
  }

  // compute: the schedule that attention_role runs

  // Heads in the order in which they arrive; within one the tiles that see the most first.
  i32 head_of(i32 task) const { return task / map.tiles(p.rank); }
  i32 key_head_of(i32 task) const { return head_of(task) / (p.h / p.g); }
  i32 tile_of(i32 task) const { return map.tiles(p.rank) - 1 - task % map.tiles(p.rank); }

  // Shards in the order in which they are visited: hop by hop, those of a node in the order in which they reach this rank.
  i32 shard_at(i32 at) const {
    const i32 hop = at / p.local_ranks, back = at % p.local_ranks;
    return map.shard((p.node - hop + p.nodes) % p.nodes, (p.local_rank - back + p.local_ranks) % p.local_ranks);
  }

  // The chunks that hold some tiles of a shard's head.
  Flags input(i32 from, i32 head, i32 first_tile, i32 tiles) const {
    const i32 strip = head * map.tiles(from) + first_tile, first = map.chunk_of_strip(strip);
    return map.gathered_at(p.local_rank, from, first, map.chunk_of_strip(strip + tiles - 1) - first + 1);
  }

  // Latest first, which are there last.
  bool is_ready(i32 task) {
    for (i32 at = p.ranks - 1; at > 0; --at) {
      const i32 from = shard_at(at), tiles = map.seen(from, tile_of(task));
      if (tiles > 0 && !all_here(input(from, key_head_of(task), 0, tiles))) return false;
    }
    return true;
  }
  bool all_here(const Flags& flags) {
    for (i32 i = 0; i < flags.count; i += kMostAtOnce) {
      const Flag first = flags.at(i);
      const Flags some{first.word, first.kind, first.index, least(flags.count - i, kMostAtOnce)};
      if (!reached_all<Scope::system>(block, some, now_value())) return false;
    }
    return true;
  }

  bool can_lend() {
    const i32 task = peek(block, &map.counters().compute_tickets, p.epoch);
    return task >= map.tile_tasks() || is_ready(task);
  }

  bool next(i32& task) {
    if (stop) return false;
    block.role = u32(Role::compute);
    u64* tickets = &map.counters().compute_tickets;
    task = lent ? peek(block, tickets, p.epoch) : claim(block, tickets, p.epoch);
    if (task >= map.tile_tasks()) {
      exhausted = true;
      return false;
    }
    if (lent && !(is_ready(task) && claim_if(block, tickets, p.epoch, task))) return false;
    begin(Role::compute);
    resumed = task_begin;
    busy = 0;
    query_tile = tile_of(task);
    key_head = key_head_of(task);
    queries_at = map.tile(p.rank, head_of(task), query_tile);
    step = -1;
    key_tile = key_tiles = 0;
    return true;
  }

  QueryTile queries(i32 task) const {
    const i64 at = map.own(queries_at);
    return {map.at<const bf16>(p.local_rank, p.q) + at, map.at<bf16>(p.local_rank, p.out) + at, queries_at.count, task};
  }

  Supply next_keys(KeyTile& keys, bool may_wait) {
    while (key_tile == key_tiles) {
      if (step == p.ranks - 1) return Supply::none;
      shard = shard_at(++step);
      key_tile = 0;
      key_tiles = map.seen(shard, query_tile);
      tiles_here = shard == p.rank ? key_tiles : 0;
    }
    if (key_tile >= tiles_here && !look()) {
      if (!may_wait) return Supply::not_yet;
      if (!wait()) return Supply::aborted;
    }
    const Rows r = map.tile(shard, key_head, key_tile);
    if (shard == p.rank) {
      const i64 at = map.own(r);
      keys.k = map.at<const bf16>(p.local_rank, p.k) + at;
      keys.v = map.at<const bf16>(p.local_rank, p.v) + at;
    } else {
      keys.k = map.gathered_kv(p.local_rank, shard, r);
      keys.v = keys.k + r.count * p.d;
    }
    keys.rows = r.count;
    keys.is_diagonal = map.is_diagonal(shard, key_tile, query_tile);
    ++key_tile;
    ++uncounted;
    return Supply::given;
  }

  // Whether the next tile is here; looks at all that follow it as well, which spares a look for each.
  bool look() {
    Flags next = input(shard, key_head, key_tile, key_tiles - key_tile);
    next.count = least(next.count, kMostAtOnce);
    return here(reached<Scope::system>(block, next, now_value()));
  }

  bool wait() {
    busy += now_ns(block) - resumed;
    gave_up = !wait_all<Scope::system>(block, input(shard, key_head, key_tile, 1), now_value());
    resumed = now_ns(block);
    return !gave_up && here(1);
  }

  // So many chunks from the next tile on. False: none.
  bool here(i32 chunks) {
    const i32 strip = key_head * map.tiles(shard), end = (map.chunk_of_strip(strip + key_tile) + chunks) * p.chunk_tiles;
    tiles_here = end - strip;
    return chunks > 0;
  }

  void done(i32 task) {
    const u64 now = now_ns(block);
    trace.add(block, Role::compute, task, task_begin, now);
    controller.finished(block, Role::compute, busy + (now - resumed), uncounted);
    uncounted = 0;
    stop = lent || (controller.assign(block) != Role::compute && !all_claimed());
  }

  Outcome compute(i32 limit) {
    lent = limit == 1;
    stop = false;
    if (p.d == 64) attention_role<64>(block, *this);
    else attention_role<128>(block, *this);
    return gave_up ? Outcome::aborted : exhausted ? Outcome::exhausted : Outcome::yielded;
  }

  // communication

  void copy_own(i32 strip, i32 peers, bf16* outbox) {
    const Rows r = map.strip(p.rank, strip);
    const i64 from = map.own(r), values = i64(r.count) * p.d;
    for (i32 matrix = 0; matrix < 2; ++matrix)  // K, then V
      copy(block, {p.d, p.d, r.count, p.d}, map.at<const bf16>(p.local_rank, matrix == 0 ? p.k : p.v) + from,
           peers + (outbox ? 1 : 0),
           [&](i32 i) { return (i < peers ? map.gathered_kv(peer(i), p.rank, r) : outbox) + matrix * values; });
  }

  void copy_arrived(i32 from, i32 strip, const bf16* inbox, bf16* outbox) {
    const Rows r = map.strip(from, strip);
    copy(block, {p.d, p.d, 2 * r.count, p.d}, inbox, p.local_ranks + (outbox ? 1 : 0),
         [&](i32 i) { return i < p.local_ranks ? map.gathered_kv(peer(i), from, r) : outbox; });
  }

 private:
  static constexpr i32 kMostAtOnce = 64;
};

void ring_attention(Block& block, const Params& p) {
  RingAttention kernel(block, p);
  run_all_gather(kernel);
}

}  // namespace mk

MK_KERNEL(ring_attention, Params, RING_ATTENTION_PARAMS, MK_ALL_GATHER_FLAGS, ring_attention, Map)
