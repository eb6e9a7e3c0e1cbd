// MoE dispatch + grouped GEMM, fused. Tokens are dealt out to the ranks, experts too; a router has chosen experts for each
// token. A rank ends with one row for each token and expert of its own: the token times the expert's weight W[hidden,inter],
// sorted by expert, then by the rank that has the token, then by token. Which row is whose follows from the choices, on the
// GPU. The router's weight of each row comes along, unused: it belongs to what combines the rows later.
//
// Tokens are routed in windows of kWindow. Of a window every node gets a list of its entries: which token, for which of the
// node's experts, sorted by expert. A token that crosses the network has a slot of the window, the same for all experts of
// that node, and crosses once.
//
//   route     counts and sorts the entries of an own window, writes the node's segments (where each expert's entries are)
//             to its ranks, and sends lists to the other nodes' rail peers
//   take      a list that came from a rail peer: the same for the own node
//   plan      once all segments are here: where every segment's rows go, and in which order blocks of rows are computed
//   send      tokens of a window that have an expert on another node, packed, a chunk at a time
//   local     gathers the rows of a segment from the token's rank, a rank of the node
//   receive   lands a chunk that came over the network, for the node's ranks; or gathers the rows of a segment from there
//   compute   tiles of a block of rows of one expert, as soon as the block is there
//
// Rows to compute lie in the order in which they arrive: by expert, then by the steps in which nodes send, then by window
// and rank. The product of a row is written to where the result has it. So a block waits for no later row than it must.
//
//   flag      writer                        reader                      scope    says
//   routed    rank of the node              plan                        system   the rank has told this one all segments that
//                                                                                it routed or took, and its lists can be read
//   placed    route                         send                        gpu      the window's tokens are sorted by node
//   planned   plan                          local, receive, compute     gpu      the plan is made
//   listed    proxy of the rail peer        take                        system   a window's list is here
//   arrived   proxy of the rail peer        receive                     system   a chunk is here
//   landed    receive, rank of the node     receive                     system   a window's tokens can be read
//   filled    local, receive                compute                     gpu      a block of rows is there
//   credit    proxy of the rail peer        route                       system   all that was sent in that launch is consumed
//   finished  rank of the node              exit                        system   the rank has read all that it needs from this
//
// No deadlock. Route waits for the credits of the launch before, which that launch gives without waiting for this one, and
// for the proxy. Take and plan come after it on every rank, in blocks that compute first, and wait for route and take alone.
// So a plan is made everywhere. Of the tasks that communicate, a block claims sends and local gathers before it waits to land
// chunks, and chunks before it waits to gather what came. Sends wait for route, local gathers for the plan, landing for sends
// of other nodes, and the other gathers for landing on this node: each for what is claimed before it on any rank. Compute
// waits for all gathers, never in a block that they need: the controller's target is 1 at least, a block that is lent takes
// only a tile whose rows are there, and one that communicates while it waits for rows takes only what need not wait.
#include "mk/mk.h"
#include "mk/parallel.h"
#include "mk/tile_order.h"

#define MOE_DISPATCH_GEMM_FLAGS(F) \
  F(routed) F(placed) F(planned) F(listed) F(arrived) F(landed) F(filled) F(credit) F(finished)

#define MOE_DISPATCH_GEMM_PARAMS(S, A)                                                                     \
  MK_LAUNCH_PARAMS(S, A)                                                                                   \
  S(u64, ids)         /* offset in the heap: i32 [shard][topk], the experts of the own tokens, distinct */ \
  S(u64, weights)     /* 32 bits each [shard][topk], carried as they are */                                \
  S(u64, lists)       /* of each node and window, list_bytes */                                            \
  S(u64, packs)       /* i32 [nodes][windows][kWindow]: own tokens for each node, in the order of slots */ \
  S(u64, counts)      /* i32 [2][nodes][windows]: how many tokens that is; how many come from there */     \
  S(u64, segments)    /* Segment [local_experts][ranks][windows] */                                        \
  S(u64, places)      /* Place, likewise */                                                                \
  S(u64, expert_rows) /* ExpertRows [local_experts + 1]; the last is the end */                            \
  S(u64, row_blocks)  /* RowBlock [most_blocks] */                                                         \
  S(u64, order)       /* i32 [most_blocks]: blocks of rows in the order in which they are computed */      \
  S(u64, out_rows)    /* i32 [most_blocks][kTileM]: row of the result of each row to compute */            \
  S(u64, row_weights) /* 32 bits for each row of the result */                                             \
  S(u64, x)           /* the own tokens, row-major, lda */                                                 \
  S(u64, w)           /* weights of the own experts, one below the other, row-major, ldb */                \
  S(u64, gathered)    /* rows to compute, lda; each expert's begin with a new block */                     \
  S(u64, inbox)       /* tokens that came over the network [nodes - 1][windows][kWindow], lda */           \
  S(u64, out)         /* the result, row-major, ldb */                                                     \
  S(u64, list_outbox) /* offset in the network region: lists [nodes - 1][windows] */                       \
  S(u64, list_inbox)                                                                                       \
  S(u64, outbox)      /* tokens [nodes - 1][windows][kWindow], lda */                                      \
  S(u64, receive)                                                                                          \
  S(i32, tokens)      /* of all ranks */                                                                   \
  S(i32, hidden)                                                                                           \
  S(i32, inter)                                                                                            \
  S(i32, experts)     /* of all ranks */                                                                   \
  S(i32, topk)                                                                                             \
  S(i32, lda)         /* elements, a multiple of 64; what is beyond hidden or inter is zero */             \
  S(i32, ldb)         /* a multiple of 8 */                                                                \
  S(i32, shard)       /* tokens of each rank, as far as there are any left */                              \
  S(i32, local_experts)                                                                                    \
  S(i32, chunk_tokens)                                                                                     \
  S(i32, most_blocks)                                                                                      \
  S(i32, list_bytes)

namespace mk {

MK_STRUCT(Params, MOE_DISPATCH_GEMM_PARAMS)

constexpr i32 kWindow = 256;  // tokens: few enough for a block to route in one go, many enough for a task to gather

enum FlagKind : u32 { routed, placed, planned, listed, arrived, landed, filled, credit, finished };

struct Entry {
  i32 row;     // token of the own node's rank, or slot of one from another node
  u32 weight;  // as the router gave it
};

// Entries of one expert in the list of one window.
struct Segment {
  i32 first, count;
};

// A segment and where its rows go: the first of those to compute, and in the result. It is the rank's own, while others
// may write segments for the next launch before all blocks have left this one.
struct Place {
  i32 row, out_row;
  Segment segment;
};

struct ExpertRows {
  i32 first, rows;  // rows to compute, counted without gaps between experts
  i32 first_block;
  i32 reserved;
};

struct RowBlock {
  i32 expert, rows;
};

// Where things are, from the parameters alone.
struct Map {
  const Params& p;

  // Ranks as sources of tokens. Nodes send to the next one first, then to the one after it, and so on, so that a node
  // gets from one at a time.
  i32 source(i32 node, i32 local_rank) const { return node * p.local_ranks + local_rank; }
  i32 peer(i32 step) const { return (p.node + step) % p.nodes; }
  i32 from(i32 step) const { return (p.node - step + p.nodes) % p.nodes; }
  i32 tokens(i32 source) const {
    const i64 left = p.tokens - i64(source) * p.shard;
    return left < 0 ? 0 : left < p.shard ? i32(left) : p.shard;
  }
  i32 windows(i32 source) const { return ceil_div(tokens(source), kWindow); }
  i32 window_tokens(i32 source, i32 window) const { return least(tokens(source) - window * kWindow, kWindow); }
  i32 most_windows() const { return ceil_div(p.shard, kWindow); }
  i32 most_chunks() const { return ceil_div(least(p.shard, kWindow), p.chunk_tokens); }  // of a window

  // Experts of a node, some of which may be past the last.
  i32 node_experts() const { return p.local_ranks * p.local_experts; }
  i32 node_of(i32 expert) const { return expert / node_experts(); }
  i32 first_expert(i32 node) const { return least(node * node_experts(), p.experts); }

  // Tasks, in the order of tickets.
  struct Chunk {
    i32 step, window, chunk;
  };
  struct Gather {
    i32 step, window, local_rank, expert;  // step 0: from the own node
  };
  // Local tasks: a window's sends, which need no plan, come first, so that the network has work at once; the others are
  // spread over the first half of the gathers, which is sooner than the network takes them, so that rows are not late.
  i32 local_tasks() const { return chunk_tasks() + local_gathers(); }
  struct Local {
    bool sends;
    i32 task;
  };
  Local local_task(i32 ticket) const {
    const i32 first = least(chunk_tasks(), most_chunks()), spread = chunk_tasks() - first;
    if (ticket < first) return {true, ticket};
    ticket -= first;
    const i32 between = spread > 0 ? local_gathers() / (2 * spread) : 0, period = 1 + between;
    if (ticket >= spread * period) return {false, ticket - spread};
    const i32 round = ticket / period, place = ticket - round * period;
    return place == 0 ? Local{true, first + round} : Local{false, round * between + place - 1};
  }
  i32 chunk_tasks() const { return (p.nodes - 1) * most_windows() * most_chunks(); }
  Chunk chunk_task(i32 task) const {
    const i32 window = task / most_chunks();
    return {1 + window / most_windows(), window % most_windows(), task % most_chunks()};
  }
  i32 local_gathers() const { return p.local_experts * most_windows() * p.local_ranks; }
  i32 gathers() const { return (p.nodes - 1) * local_gathers(); }
  // Expert by expert, so that blocks of rows become complete one after the other; ranks in turn, each starting with itself.
  Gather local_gather(i32 task) const {
    const i32 window = task / p.local_ranks;
    return {0, window % most_windows(), (task + p.local_rank) % p.local_ranks, window / most_windows()};
  }
  // As they arrive.
  Gather gather(i32 task) const {
    const i32 local_rank = task / p.local_experts, window = local_rank / p.local_ranks;
    return {1 + window / most_windows(), window % most_windows(), local_rank % p.local_ranks, task % p.local_experts};
  }

  template <class T> T* at(i32 local_rank, u64 offset) const { return reinterpret_cast<T*>(p.heap[local_rank] + offset); }
  template <class T> T* own(u64 offset) const { return at<T>(p.local_rank, offset); }
  template <class T> T* network(u64 offset) const { return reinterpret_cast<T*>(p.network + offset); }

  // A buffer for what other nodes send has a bank for each of them.
  i64 bank(i32 from_node, i32 at_node) const { return from_node < at_node ? from_node : from_node - 1; }
  i64 window_of(i64 bank, i32 window) const { return bank * most_windows() + window; }

  // A list is a header and entries. The header: tokens of the window that go to the node; where the entries of each of its
  // experts begin, and their end.
  i64 header_bytes() const { return (i64(node_experts()) + 2 + 3) / 4 * 16; }
  Entry* entries(u8* list) const { return reinterpret_cast<Entry*>(list + header_bytes()); }
  Entry* list(i32 local_rank, i32 node, i32 window) const {
    return entries(at<u8>(local_rank, p.lists) + window_of(node, window) * p.list_bytes);
  }
  i64 list_offset(i64 bank, i32 window) const { return window_of(bank, window) * p.list_bytes; }
  i32* pack(i32 node, i32 window) const { return own<i32>(p.packs) + window_of(node, window) * kWindow; }
  i32& sent(i32 node, i32 window) const { return own<i32>(p.counts)[window_of(node, window)]; }
  i32& coming(i32 node, i32 window) const { return own<i32>(p.counts)[window_of(p.nodes + node, window)]; }

  i64 segment_index(i32 expert, i32 source, i32 window) const {
    return (i64(expert) * p.ranks + source) * most_windows() + window;
  }

  // Rows of tokens.
  bf16* token_row(i32 local_rank, i64 token) const { return at<bf16>(local_rank, p.x) + token * p.lda; }
  i64 row_bytes() const { return i64(p.lda) * i64(sizeof(bf16)); }
  i64 slot_row(i64 bank, i32 window, i32 slot) const { return window_of(bank, window) * kWindow + slot; }

  // Control words of the heap: flags of this GPU and of the node's ranks, every kind consecutive, then counters.
  // Control words of the network region, which comes first in it: flags that the proxy sets.
  i64 flag_index(FlagKind kind) const {
    const i64 told_by_ranks = 2 * p.local_ranks, others = p.nodes - 1;
    switch (kind) {
      case routed: return 0;
      case finished: return p.local_ranks;
      case planned: return told_by_ranks;
      case placed: return told_by_ranks + 1;
      case filled: return told_by_ranks + 1 + most_windows();
      case landed: return told_by_ranks + 1 + most_windows() + p.most_blocks;
      case credit: return 0;
      case listed: return others;
      default: return others + others * most_windows();  // arrived
    }
  }
  i64 flag_words() const { return flag_index(landed) + i64(p.ranks) * most_windows(); }
  i64 network_control_bytes() const { return (flag_index(arrived) + chunk_tasks()) * i64(sizeof(u64)); }

  Flags told(i32 local_rank, FlagKind kind, i64 index, i32 count) const {
    return {at<u64>(local_rank, p.control_offset) + flag_index(kind) + index, kind, u32(index), count};
  }
  Flags received(FlagKind kind, i64 index, i32 count) const {
    return {network<u64>(0) + flag_index(kind) + index, kind, u32(index), count};
  }
  i64 landed_index(i32 source, i32 window) const { return i64(source) * most_windows() + window; }
  i64 arrived_index(i64 bank, i32 window, i32 chunk) const { return window_of(bank, window) * most_chunks() + chunk; }

  // Counters follow the flags, then the queue's heads, a counter for each block of rows and one for each window that lands.
  struct Counters {
    ControllerWords controller;
    u64 route_tickets, take_tickets, local_tickets, landing_tickets, gather_tickets, compute_tickets;
    u64 told;        // windows whose segments the node's ranks have
    u64 landed;      // chunks that are landed
    u64 gathered;    // segments that are gathered
    u64 queue_full;  // pushes that found their ring full
    u64 port;        // pacing: until when the NVLink port is taken
  };
  Counters& counters() const { return *reinterpret_cast<Counters*>(own<u64>(p.control_offset) + flag_words()); }
  u64* queue_heads() const { return reinterpret_cast<u64*>(&counters() + 1); }
  u64* rows_here(i32 block) const { return queue_heads() + p.rings + block; }
  u64* chunks_here(i64 bank, i32 window) const { return rows_here(p.most_blocks) + window_of(bank, window); }
  i64 control_bytes() const {
    return i64(sizeof(Counters)) +
           (flag_words() + p.rings + p.most_blocks + i64(p.nodes - 1) * most_windows()) * i64(sizeof(u64));
  }
};

// Which of a window's tokens has chosen which bin: the experts, then the nodes. In shared memory.
struct Bins {
  static constexpr i32 kWords = kWindow / 32;
  u32* bits;

  void clear(Block& block, i32 bins) {
    for_each(block, bins * kWords, sizeof(u32), [&](i32 i) { bits[i] = 0; });
  }
  void add(i32 bin, i32 token) { set_bits(bits + bin * kWords + token / 32, 1u << token % 32); }
  bool has(i32 bin, i32 token) const { return bits[bin * kWords + token / 32] >> token % 32 & 1; }
  i32 count(i32 bin) const { return before(bin, kWindow); }
  i32 before(i32 bin, i32 token) const {  // tokens of the bin that come before this one
    const u32* words = bits + bin * kWords;
    i32 n = 0;
    for (i32 i = 0; i < token / 32; ++i) n += count_bits(words[i]);
    return token % 32 == 0 ? n : n + count_bits(words[token / 32] & ((1u << token % 32) - 1));
  }
};

struct MoeDispatchGemm {
  Block& block;
  const Params& p;
  Map map;
  Controller controller;
  Trace trace;
  CommandQueue queue;
  u64 task_begin = 0;
  i32 tiles = -1;          // to compute; -1: not known yet
  i32 tile = -1;           // claimed, but its rows were not there
  i32 held = -1;           // gather that is claimed, but its rows were not there
  i32 looks = 0;           // in vain, for something to help with
  bool looked = false;     // as often as it is worth
  bool helps = false;      // communicates until there is something to compute
  bool lent = false;       // compute may take a tile only if it need not wait, and is to come back after it
  bool stop = false;       // compute is to come back now
  bool exhausted = false;  // compute found no tile left
  bool gave_up = false;    // compute gave up a wait

  MoeDispatchGemm(Block& block_, const Params& p_)
      : block(block_), p(p_), map{p_},
        controller{&map.counters().controller, map.own<HistoryRow>(p.history_offset), p.history_capacity, p.epoch,
                   Policy(p.policy), p.blocks, p.comm_sms,
                   {0, 1, u32(map.local_tasks()), 0, u32(map.chunk_tasks() + map.gathers())}, now_ns(block_)},
        trace{map.own<TraceEvent>(p.trace_offset), p.trace_capacity},
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
    controller.finished(block, role == Role::send ? Role::local : role, now - task_begin);
  }

  // Before the roles: routing, by all blocks; what follows from it by those that compute first, since others can send.

  bool prepare() {
    block.role = u32(Role::none);
    for (i32 window; (window = claim(block, &map.counters().route_tickets, p.epoch)) < map.windows(p.rank);)
      if (!route(window)) return false;
    if (block.index < least(p.comm_sms, p.blocks - 1)) return true;
    const i32 lists = windows_of_peers();
    for (;;) {
      const i32 task = claim(block, &map.counters().take_tickets, p.epoch);
      if (task > lists) return true;
      if (!(task < lists ? take(task) : plan())) return false;
    }
  }

  i32 windows_of_peers() const {
    i32 count = 0;
    for (i32 step = 1; step < p.nodes; ++step) count += map.windows(map.source(map.from(step), p.local_rank));
    return count;
  }

  bool route(i32 window) {
    // What is written here and from here on, the launch before may still read elsewhere.
    if (p.nodes > 1 && !wait_all<Scope::system>(block, map.received(credit, 0, p.nodes - 1), flag_value(p.epoch - 1, 0)))
      return false;
    const i32 first = window * kWindow, tokens = map.window_tokens(p.rank, window);
    const i32* ids = map.own<const i32>(p.ids) + i64(first) * p.topk;
    const u32* weights = map.own<const u32>(p.weights) + i64(first) * p.topk;
    const i32 bins = p.experts + p.nodes;
    Bins chosen{shared_words(block) + kScanWords};
    u32* starts = chosen.bits + bins * Bins::kWords;
    block.sync();
    chosen.clear(block, bins);
    block.sync();
    for_each(block, tokens, p.topk * i32(sizeof(i32)), [&](i32 token) {
      for (i32 k = 0; k < p.topk; ++k) {
        const i32 expert = ids[token * p.topk + k];
        chosen.add(expert, token);
        chosen.add(p.experts + map.node_of(expert), token);
      }
    });
    const i32 all = scan(block, p.experts, [&](i32 expert) { return chosen.count(expert); },
                         [&](i32 expert, i32 before) { starts[expert] = u32(before); });
    for_each(block, 1, sizeof(u32), [&](i32) { starts[p.experts] = u32(all); });
    block.sync();
    const auto begin_of = [&](i32 node, i32 expert) {  // in the node's list; `expert` counts from the node's first
      return i32(starts[least(map.first_expert(node) + expert, p.experts)] - starts[map.first_expert(node)]);
    };
    for_each(block, tokens * p.topk, sizeof(Entry), [&](i32 i) {
      const i32 token = i / p.topk, expert = ids[i], node = map.node_of(expert);
      const i32 slot = chosen.before(p.experts + node, token);
      list_to(node, window)[begin_of(node, expert - map.first_expert(node)) + chosen.before(expert, token)] = {
          node == p.node ? first + token : slot, weights[i]};
    });
    for_each(block, tokens * p.nodes, sizeof(i32), [&](i32 i) {
      const i32 node = i / tokens, token = i - node * tokens;
      if (chosen.has(p.experts + node, token)) map.pack(node, window)[chosen.before(p.experts + node, token)] = first + token;
    });
    for_each(block, p.nodes, sizeof(i32), [&](i32 node) { map.sent(node, window) = chosen.count(p.experts + node); });
    tell_segments(p.rank, window, [&](i32 expert) { return begin_of(p.node, expert); });
    const i32 words = map.node_experts() + 2;
    for_each(block, p.nodes * words, sizeof(u32), [&](i32 i) {
      const i32 node = i / words, word = i - node * words;
      if (node != p.node)
        header_to(node, window)[word] = u32(word == 0 ? chosen.count(p.experts + node) : begin_of(node, word - 1));
    });
    signal<Scope::gpu>(block, map.told(p.local_rank, placed, window, 1).at(0), now_value());
    for (i32 step = 1; step < p.nodes; ++step) {
      const i32 node = map.peer(step);
      const i64 bank = map.bank(p.node, node), entries = begin_of(node, map.node_experts()) * i64(sizeof(Entry));
      if (!queue.push(block, {CommandOp::put, node, u32(map.flag_index(listed) + map.window_of(bank, window)),
                              i64(p.list_outbox) + map.list_offset(map.bank(node, p.node), window),
                              i64(p.list_inbox) + map.list_offset(bank, window), map.header_bytes() + (entries + 15) / 16 * 16,
                              u32(p.epoch)}))
        return false;
    }
    told_window();
    return true;
  }

  // Where the entries of a window for a node are to be written.
  Entry* list_to(i32 node, i32 window) const {
    if (node == p.node) return map.list(p.local_rank, node, window);
    return map.entries(reinterpret_cast<u8*>(header_to(node, window)));
  }
  u32* header_to(i32 node, i32 window) const {
    return map.network<u32>(p.list_outbox + u64(map.list_offset(map.bank(node, p.node), window)));
  }

  // `begin(expert)` is where the entries of an expert of this node begin.
  template <class Begin> void tell_segments(i32 source, i32 window, Begin begin) {
    for_each(block, map.node_experts(), sizeof(Segment), [&](i32 expert) {
      Segment* segments = map.at<Segment>(expert / p.local_experts, p.segments);
      segments[map.segment_index(expert % p.local_experts, source, window)] = {begin(expert), begin(expert + 1) - begin(expert)};
    });
  }

  bool take(i32 task) {
    i32 step = 1, window = task;
    for (; window >= map.windows(map.source(map.from(step), p.local_rank)); ++step)
      window -= map.windows(map.source(map.from(step), p.local_rank));
    const i32 node = map.from(step);
    const i64 bank = map.bank(node, p.node);
    if (!wait_all<Scope::system>(block, map.received(listed, map.window_of(bank, window), 1), now_value())) return false;
    u8* list = map.network<u8>(p.list_inbox + u64(map.list_offset(bank, window)));
    const u32* header = reinterpret_cast<const u32*>(list);
    tell_segments(map.source(node, p.local_rank), window, [&](i32 expert) { return i32(header[1 + expert]); });
    for_each(block, i32(header[1 + map.node_experts()]), sizeof(Entry),
             [&](i32 i) { map.list(p.local_rank, node, window)[i] = map.entries(list)[i]; });
    for_each(block, 1, sizeof(i32), [&](i32) { map.coming(node, window) = i32(header[0]); });
    told_window();
    return true;
  }

  void told_window() {
    const u32 all = u32(map.windows(p.rank) + windows_of_peers());
    if (completes<Scope::system>(block, &map.counters().told, p.epoch, all)) say(routed);
  }

  Flags finished_here() const { return map.told(p.local_rank, finished, 0, p.local_ranks); }

  // To all ranks of the node, as the one that this is there.
  void say(FlagKind kind) {
    const auto flag = [&](i32 i) { return map.told(i, kind, p.local_rank, 1).at(0); };
    signal_each<Scope::system>(block, p.local_ranks, flag, now_value());
  }

  // By one block. Rows to compute are numbered by expert and in the order of arrival, those of the result by expert, source
  // and window: both are sums over the same counts.
  bool plan() {
    if (map.windows(p.rank) + windows_of_peers() == 0) say(routed);
    if (!wait_all<Scope::system>(block, map.told(p.local_rank, routed, 0, p.local_ranks), now_value())) return false;
    const i32 windows = map.most_windows(), arrivals = p.ranks * windows, all = p.local_experts * arrivals;
    Place* places = map.own<Place>(p.places);
    ExpertRows* experts = map.own<ExpertRows>(p.expert_rows);
    const auto arrival = [&](i32 expert, i32 i) {  // the i-th segment of an expert
      const i32 window = i / p.local_ranks, source = map.source(map.from(window / windows), i % p.local_ranks);
      return expert * arrivals + source * windows + window % windows;
    };
    const auto segment = [&](i32 index) {
      const i32 source = index / windows % p.ranks, window = index % windows;
      return window < map.windows(source) ? map.own<const Segment>(p.segments)[index] : Segment{0, 0};
    };
    const auto arriving = [&](i32 i) { return segment(arrival(i / arrivals, i % arrivals)).count; };
    const i32 rows = scan(block, all, arriving, [&](i32 i, i32 before) {
      places[arrival(i / arrivals, i % arrivals)].row = before;
      if (i % arrivals == 0) experts[i / arrivals].first = before;
    });
    for_each(block, p.local_experts, sizeof(ExpertRows), [&](i32 expert) {
      experts[expert].rows = (expert + 1 < p.local_experts ? experts[expert + 1].first : rows) - experts[expert].first;
    });
    const i32 blocks = scan(block, p.local_experts, [&](i32 expert) { return ceil_div(experts[expert].rows, kTileM); },
                            [&](i32 expert, i32 before) { experts[expert].first_block = before; });
    for_each(block, 1, sizeof(ExpertRows), [&](i32) { experts[p.local_experts] = {rows, 0, blocks, 0}; });
    scan(block, all, [&](i32 i) { return segment(i).count; }, [&](i32 i, i32 before) {
      places[i].out_row = before;
      places[i].segment = segment(i);
    });
    order_blocks(places, experts, arrival);
    for_each(block, all, sizeof(Place), [&](i32 i) {
      const ExpertRows& expert = experts[i / arrivals];
      places[i].row += expert.first_block * kTileM - expert.first;
    });
    signal<Scope::gpu>(block, map.told(p.local_rank, planned, 0, 1).at(0), now_value());
    return true;
  }

  // A block is complete with a window of a step; that of the own node is one, since all of it is there. Blocks are computed
  // in this order, then by expert.
  template <class Arrival> void order_blocks(const Place* places, const ExpertRows* experts, Arrival arrival) {
    const i32 windows = map.most_windows(), times = 1 + (p.nodes - 1) * windows;
    RowBlock* row_blocks = map.own<RowBlock>(p.row_blocks);
    i32* order = map.own<i32>(p.order);
    const auto done = [&](i32 time, i32 expert) {  // blocks of an expert that are complete by then
      const ExpertRows& all = experts[expert];
      const i32 next = (windows + time) * p.local_ranks;  // first segment that comes later
      const i32 rows = time + 1 == times ? all.rows : places[arrival(expert, next)].row - all.first;
      return time < 0 ? 0 : rows == all.rows ? ceil_div(rows, kTileM) : rows / kTileM;
    };
    scan(block, times * p.local_experts,
         [&](i32 i) {
           const i32 time = i / p.local_experts, expert = i % p.local_experts;
           return done(time, expert) - done(time - 1, expert);
         },
         [&](i32 i, i32 before) {
           const i32 time = i / p.local_experts, expert = i % p.local_experts;
           const i32 begin = done(time - 1, expert), end = done(time, expert);
           for (i32 n = begin; n < end; ++n) {
             const i32 number = experts[expert].first_block + n;
             order[before + n - begin] = number;
             row_blocks[number] = {expert, least(experts[expert].rows - n * kTileM, kTileM)};
           }
         });
  }

  bool know_plan(bool wait) {
    if (tiles >= 0) return true;
    const Flags flag = map.told(p.local_rank, planned, 0, 1);
    if (wait ? !wait_all<Scope::gpu>(block, flag, now_value()) : !reached_all<Scope::gpu>(block, flag, now_value())) return false;
    tiles = map.own<const ExpertRows>(p.expert_rows)[p.local_experts].first_block * columns();
    controller.total[u32(Role::compute)] = u32(tiles > 0 ? tiles : 1);
    return true;
  }

  // compute: the schedule that gemm_role runs

  i32 columns() const { return ceil_div(p.inter, kTileN); }
  i32 row_block(i32 ticket) const { return map.own<const i32>(p.order)[ticket / columns()]; }
  Flags input(i32 ticket) const { return map.told(p.local_rank, filled, row_block(ticket), 1); }
  bool is_ready(i32 ticket) { return reached_all<Scope::gpu>(block, input(ticket), now_value()); }

  bool next(i32& ticket) {
    block.role = u32(Role::compute);
    if (stop) return false;
    if (!know_plan(false)) {
      if (lent || starves()) return false;
      if (!know_plan(true)) return !(gave_up = true);
    }
    u64* tickets = &map.counters().compute_tickets;
    if (tile < 0) {
      const i32 next_tile = lent ? peek(block, tickets, p.epoch) : claim(block, tickets, p.epoch);
      if (next_tile >= tiles) {
        exhausted = true;
        return false;
      }
      if (lent && !(is_ready(next_tile) && claim_if(block, tickets, p.epoch, next_tile))) return false;
      tile = next_tile;
    }
    if (!lent && !is_ready(tile)) {
      if (starves()) return false;
      if (!wait_all<Scope::gpu>(block, input(tile), now_value())) return !(gave_up = true);
    }
    ticket = tile;
    tile = -1;
    looked = false;
    begin(Role::compute);
    return true;
  }

  // Where blocks may change sides, one that would have to wait goes to communicate first.
  bool starves() { return helps = controller.releases() && !looked && communication_left(); }

  GemmOperands operands(i32 ticket) const {
    const i32 number = row_block(ticket), column = ticket % columns() * kTileN, cols = least(p.ldb - column, kTileN);
    const RowBlock rows = map.own<const RowBlock>(p.row_blocks)[number];
    return {map.own<const bf16>(p.gathered) + i64(number) * kTileM * p.lda,
            map.own<const bf16>(p.w) + i64(rows.expert) * p.hidden * p.ldb + column,
            map.own<bf16>(p.out) + column, p.lda, p.ldb, p.ldb, p.hidden, rows.rows, cols, rows.rows, cols, ticket,
            map.own<const i32>(p.out_rows) + i64(number) * kTileM};
  }

  void done(i32 ticket) {
    end(Role::compute, ticket);
    stop = lent || controller.assign(block) != Role::compute;
  }

  Outcome compute(i32 limit) {
    lent = limit == 1 && tile < 0;
    stop = false;
    gemm_role(block, *this);
    if (gave_up) return Outcome::aborted;
    return helps ? Outcome::starved : exhausted ? Outcome::exhausted : Outcome::yielded;
  }

  // communication

  enum class Kind : u32 {
    none,    // at this moment, for who helps
    over,    // no task is left to claim
    lend,    // there is a tile to compute meanwhile
    again,   // another block was faster
    local,   // by ticket
    gather,  // of what has landed
    land,
  };
  struct Choice {
    Kind kind;
    i32 task;
  };

  Outcome communicate(bool may_lend) {
    for (;;) {
      if (helps && is_fed()) return stop_helping();
      if (!helps && held < 0 && may_lend && controller.assign(block) != Role::local) return Outcome::yielded;
      const Choice choice = choose(may_lend);
      if (choice.kind == Kind::again) continue;
      if (choice.kind == Kind::over) return Outcome::exhausted;
      if (choice.kind == Kind::lend) return Outcome::yielded;
      if (choice.kind != Kind::none) {
        if (!perform(choice)) return Outcome::aborted;
        looks = 0;
      } else if (++looks < kLooks && communication_left()) {
        rest(block);
      } else {
        looked = true;
        return stop_helping();
      }
    }
  }

  // A block that starves looks so often for something to do before it waits for good.
  static constexpr i32 kLooks = 64;
  bool is_fed() { return tile < 0 ? know_plan(false) : is_ready(tile); }
  Outcome stop_helping() {
    helps = false;
    looks = 0;
    return Outcome::yielded;
  }

  // Local tasks come first, then gathers of what has landed, then landing: what is first needs nothing that comes later, on
  // any rank. Who may be lent waits only if there is no tile for it either; who helps, never.
  //
  // A gather is claimed when the next one's rows are seen, but others may be faster, and leave a later one. It is held while
  // there is something to land: then nobody waits for a gather while a chunk is left that nobody lands, and a block that
  // holds one does not change sides. Who helps takes only what it has seen.
  Choice choose(bool may_lend) {
    Map::Counters& counters = map.counters();
    const i32 locals = map.local_tasks(), gathers = map.gathers(), landings = map.chunk_tasks();
    const i32 next_local = peek(block, &counters.local_tickets, p.epoch);
    bool takes_local = next_local < locals && (!(may_lend || helps) || can_local(next_local));
    if (!takes_local) {
      const i32 next_gather = held < 0 ? peek(block, &counters.gather_tickets, p.epoch) : held;
      if (next_gather < gathers && can_gather(next_gather)) {
        if (helps) {
          const bool claimed = claim_if(block, &counters.gather_tickets, p.epoch, next_gather);
          return {claimed ? Kind::gather : Kind::again, next_gather};
        }
        const i32 task = held < 0 ? claim(block, &counters.gather_tickets, p.epoch) : held;
        held = task == next_gather || task >= gathers ? -1 : task;
        return {task == next_gather ? Kind::gather : Kind::again, task};
      }
      const i32 next_landing = peek(block, &counters.landing_tickets, p.epoch);
      const bool landing_left = next_landing < landings, lands = landing_left && can_land(next_landing);
      if (helps) {
        if (!lands) return {Kind::none, 0};
        const bool claimed = claim_if(block, &counters.landing_tickets, p.epoch, next_landing);
        return {claimed ? Kind::land : Kind::again, next_landing};
      }
      if (!lands && held < 0) {
        if (next_local >= locals && next_gather >= gathers && !landing_left) return {Kind::over, 0};
        if (may_lend && can_lend()) return {Kind::lend, 0};
      }
      // From here on it may have to wait.
      if (landing_left && (lands || next_local >= locals)) {
        const i32 task = claim(block, &counters.landing_tickets, p.epoch);
        return {task < landings ? Kind::land : Kind::again, task};
      }
      takes_local = next_local < locals;
      if (!takes_local) {
        const i32 task = held < 0 ? claim(block, &counters.gather_tickets, p.epoch) : held;
        held = -1;
        return {task < gathers ? Kind::gather : Kind::again, task};
      }
    }
    const i32 task = claim(block, &counters.local_tickets, p.epoch);
    return {task < locals ? Kind::local : Kind::again, task};
  }

  bool communication_left() {
    Map::Counters& counters = map.counters();
    return peek(block, &counters.local_tickets, p.epoch) < map.local_tasks() ||
           peek(block, &counters.gather_tickets, p.epoch) < map.gathers() ||
           peek(block, &counters.landing_tickets, p.epoch) < map.chunk_tasks();
  }

  bool can_lend() {
    if (!know_plan(false)) return false;
    const i32 ticket = peek(block, &map.counters().compute_tickets, p.epoch);
    return ticket >= tiles || is_ready(ticket);
  }
  bool can_local(i32 ticket) {
    const Map::Local what = map.local_task(ticket);
    if (!what.sends) return know_plan(false);
    const i32 window = map.chunk_task(what.task).window;
    return window >= map.windows(p.rank) || reached_all<Scope::gpu>(block, placement_of(window), now_value());
  }
  bool can_gather(i32 task) {
    if (!know_plan(false)) return false;
    const Map::Gather what = map.gather(task);
    return place_of(what).segment.count == 0 || reached_all<Scope::system>(block, landing_of(what), now_value());
  }
  bool can_land(i32 task) {
    if (!know_plan(false)) return false;
    const Map::Chunk what = map.chunk_task(task);
    return coming_of(what) == 0 || reached_all<Scope::system>(block, arrival_of(what), now_value());
  }

  // Rows that a task copies: table + rows[i] * lda, rows being shared words, to consecutive places.
  struct Move {
    i32 count;
    const bf16* table;
    bf16* to;
  };

  bool perform(const Choice& choice) {
    const Map::Local local = choice.kind == Kind::local ? map.local_task(choice.task) : Map::Local{false, 0};
    if (local.sends) return send(local.task);
    if (choice.kind == Kind::land) return land(choice.task);
    return gather_segment(choice.kind == Kind::local, choice.kind == Kind::local ? local.task : choice.task);
  }

  void move(const Move& what) {
    u32* rows = shared_words(block);
    block.sync();
    gather(block, what.count, p.lda, [&](i32 i) { return what.table + i64(rows[i]) * p.lda; }, what.to, p.lda);
  }

  Flags placement_of(i32 window) const { return map.told(p.local_rank, placed, window, 1); }

  // Tokens of a chunk, of those of a window that cross.
  i32 tokens_of(const Map::Chunk& what, i32 crossing) const {
    const i32 left = crossing - what.chunk * p.chunk_tokens;
    return left < 0 ? 0 : least(left, p.chunk_tokens);
  }

  bool send(i32 task) {
    block.role = u32(Role::send);
    const Map::Chunk what = map.chunk_task(task);
    const i32 node = map.peer(what.step);
    const bool exists = what.window < map.windows(p.rank);
    if (exists && !wait_all<Scope::gpu>(block, placement_of(what.window), now_value())) return false;
    begin(Role::send);
    if (const i32 count = exists ? tokens_of(what, map.sent(node, what.window)) : 0; count > 0) {
      const i32 slot = what.chunk * p.chunk_tokens;
      const i32* tokens = map.pack(node, what.window) + slot;
      u32* rows = shared_words(block);
      for_each(block, count, sizeof(i32), [&](i32 i) { rows[i] = u32(tokens[i]); });
      const i64 bank = map.bank(p.node, node), row = map.slot_row(map.bank(node, p.node), what.window, slot);
      const i64 flag = map.flag_index(arrived) + map.arrived_index(bank, what.window, what.chunk);
      move({count, map.token_row(p.local_rank, 0), map.network<bf16>(p.outbox) + row * p.lda});
      if (!queue.push(block, {CommandOp::put, node, u32(flag), i64(p.outbox) + row * map.row_bytes(),
                              i64(p.receive) + map.slot_row(bank, what.window, slot) * map.row_bytes(),
                              count * map.row_bytes(), u32(p.epoch)}))
        return false;
    }
    end(Role::send, task);
    return true;
  }

  Flags arrival_of(const Map::Chunk& what) const {
    return map.received(arrived, map.arrived_index(map.bank(map.from(what.step), p.node), what.window, what.chunk), 1);
  }
  i32 coming_of(const Map::Chunk& what) const {
    const i32 node = map.from(what.step);
    const bool exists = what.window < map.windows(map.source(node, p.local_rank));
    return exists ? tokens_of(what, map.coming(node, what.window)) : 0;
  }

  // From the network region, which only this rank can read, to the heap.
  bool land(i32 task) {
    block.role = u32(Role::receive);
    if (!know_plan(true)) return false;
    const Map::Chunk what = map.chunk_task(task);
    const i32 node = map.from(what.step), count = coming_of(what);
    if (count > 0 && !wait_all<Scope::system>(block, arrival_of(what), now_value())) return false;
    begin(Role::receive);
    if (count > 0) {
      const i64 bank = map.bank(node, p.node), row = map.slot_row(bank, what.window, what.chunk * p.chunk_tokens);
      u32* rows = shared_words(block);
      for_each(block, count, sizeof(i32), [&](i32 i) { rows[i] = u32(i); });
      move({count, map.network<const bf16>(p.receive) + row * p.lda, map.own<bf16>(p.inbox) + row * p.lda});
      const i64 index = map.landed_index(map.source(node, p.local_rank), what.window);
      const u32 chunks = u32(ceil_div(map.coming(node, what.window), p.chunk_tokens));
      if (completes<Scope::system>(block, map.chunks_here(bank, what.window), p.epoch, chunks))
        signal_each<Scope::system>(block, p.local_ranks, [&](i32 i) { return map.told(i, landed, index, 1).at(0); }, now_value());
    }
    end(Role::receive, task);
    return !completes<Scope::gpu>(block, &map.counters().landed, p.epoch, u32(map.chunk_tasks())) || give_credits();
  }

  bool give_credits() {
    for (i32 step = 1; step < p.nodes; ++step) {
      const i32 node = map.peer(step);
      if (!queue.push(block, {CommandOp::put, node, u32(map.flag_index(credit) + map.bank(p.node, node)), 0, 0, 0, u32(p.epoch)}))
        return false;
    }
    return true;
  }

  i32 source_of(const Map::Gather& what) const { return map.source(map.from(what.step), what.local_rank); }
  Place place_of(const Map::Gather& what) const {
    return map.own<const Place>(p.places)[map.segment_index(what.expert, source_of(what), what.window)];
  }
  Flags landing_of(const Map::Gather& what) const {
    return map.told(p.local_rank, landed, map.landed_index(source_of(what), what.window), 1);
  }

  bool gather_segment(bool is_local, i32 task) {
    const Role role = is_local ? Role::local : Role::receive;
    block.role = u32(role);
    if (!know_plan(true)) return false;
    const Map::Gather what = is_local ? map.local_gather(task) : map.gather(task);
    const Place place = place_of(what);
    if (!is_local && place.segment.count > 0 && !wait_all<Scope::system>(block, landing_of(what), now_value())) return false;
    begin(role);
    if (place.segment.count > 0 && !gather_rows(what, place)) return false;
    end(role, map.chunk_tasks() + task);
    const u32 all = u32(map.local_gathers() + map.gathers());
    if (completes<Scope::system>(block, &map.counters().gathered, p.epoch, all)) say(finished);
    return true;
  }

  bool gather_rows(const Map::Gather& what, const Place& place) {
    const i32 node = map.from(what.step), peer = what.local_rank;
    const Segment segment = place.segment;
    const Entry* entries = map.list(peer, node, what.window) + segment.first;
    u32* rows = shared_words(block);
    i32* out_rows = map.own<i32>(p.out_rows) + place.row;
    u32* weights = map.own<u32>(p.row_weights) + place.out_row;
    for_each(block, segment.count, sizeof(Entry), [&](i32 i) {
      const Entry entry = entries[i];
      rows[i] = u32(entry.row);
      out_rows[i] = place.out_row + i;
      weights[i] = entry.weight;
    });
    const i64 first_slot = map.slot_row(map.bank(node, p.node), what.window, 0);
    move({segment.count, node == p.node ? map.token_row(peer, 0) : map.at<const bf16>(peer, p.inbox) + first_slot * p.lda,
          map.own<bf16>(p.gathered) + i64(place.row) * p.lda});
    const u64 bytes = peer == p.local_rank ? 0 : u64(segment.count) * u64(map.row_bytes());
    if (!pace(block, &map.counters().port, p.pace_fs_per_byte, bytes, task_begin)) return false;
    const i32 end = place.row + segment.count;
    for (i32 row = place.row; row < end;) {
      const i32 number = row / kTileM, here = least(end, (number + 1) * kTileM) - row;
      const u32 all = u32(map.own<const RowBlock>(p.row_blocks)[number].rows);
      if (completes<Scope::gpu>(block, map.rows_here(number), p.epoch, all, u32(here)))
        signal<Scope::gpu>(block, map.told(p.local_rank, filled, number, 1).at(0), now_value());
      row += here;
    }
    return true;
  }
};

void run_dispatch(MoeDispatchGemm& kernel) {
  Block& block = kernel.block;
  const bool first = block.index == 0 && block.leader();
  if (first) kernel.controller.record(block);
  if (!kernel.prepare()) return;
  run_roles(block, kernel.controller, [&](i32 limit) { return kernel.compute(limit); },
            [&](bool may_lend) { return kernel.communicate(may_lend); });
  if (block.index != 0 || aborted(block)) return;
  wait_all<Scope::system>(block, kernel.finished_here(), kernel.now_value());
  if (first) kernel.controller.record(block);
}

void moe_dispatch_gemm(Block& block, const Params& p) {
  MoeDispatchGemm kernel(block, p);
  run_dispatch(kernel);
}

}  // namespace mk

MK_KERNEL(moe_dispatch_gemm, Params, MOE_DISPATCH_GEMM_PARAMS, MOE_DISPATCH_GEMM_FLAGS, moe_dispatch_gemm, Map)
