// Attention of a tile of queries, which takes keys tile by tile in any order and keeps what it has seen (the highest
// logit, the sum of weights, the weighted sum of values) in fp32. A platform provides
//   Attention<d> tile(block, queries)   begins; d is the head dimension
//   tile.load(block, keys)              starts to fetch a tile of keys and values, two of which fit
//   tile.load_nothing()                 in place of load, so that loads and uses alternate
//   tile.add(block, keys)               takes in the older of what was loaded
//   tile.store(block, queries)          divides, rounds once to bf16, writes
#pragma once
#include "tiles.h"

namespace mk {

constexpr i32 kQueryRows = kTileM, kKeyRows = kTileM;
constexpr i32 kKeysAtOnce = kKeyRows / 2;  // beyond the end of a tile so many are skipped at once

// Logits are divided by sqrt(d), and powers taken of two.
template <i32 d> constexpr float logit_scale() {
  static_assert(d == 64 || d == 128);
  return 1.44269504f * (d == 64 ? 0.125f : 0.0883883476f);
}

// Queries of one head. Rows of d elements follow each other, here and in `out`.
struct QueryTile {
  const bf16* q;
  bf16* out;
  i32 rows;  // 1 to kQueryRows
  i32 task;  // for the cost model
};

struct KeyTile {
  const bf16* k;  // rows of d elements, one after the other
  const bf16* v;
  i32 rows;          // 1 to kKeyRows
  bool is_diagonal;  // a query sees the keys up to its own row; else all of them
};

enum class Supply {
  given,    // a tile of keys
  not_yet,  // one is left, but not here
  none,     // that was all
  aborted,  // the wait was given up
};

}  // namespace mk

#ifdef __CUDACC__
#include "attention_cuda.h"
#else
#include "attention_cpu.h"
#endif

namespace mk {

// All keys of one tile of queries. `schedule.next_keys(keys, may_wait)` supplies them, the first row of each visible to
// every query; it says not_yet only if it may not wait. False: given up.
template <i32 d, class Schedule> bool attend(Block& block, const QueryTile& queries, Schedule& schedule) {
  Attention<d> tile(block, queries);
  KeyTile keys{};
  bool is_loaded = false;
  for (;;) {
    // Fetched while the one before is computed, if it is here; who waited for it would hold up what can be done.
    KeyTile following{};
    const Supply supply = schedule.next_keys(following, !is_loaded);
    const bool is_given = supply == Supply::given;
    if (is_given) tile.load(block, following);
    if (is_loaded) {
      if (!is_given) tile.load_nothing();
      tile.add(block, keys);
    }
    if (supply == Supply::aborted) return false;
    if (supply == Supply::none) break;
    keys = following;
    is_loaded = is_given;
  }
  tile.store(block, queries);
  return true;
}

// Persistent attention: `schedule.next(task)` claims, `schedule.queries(task)` says what it is, `schedule.done(task)` runs
// when its result is written.
template <i32 d, class Schedule> void attention_role(Block& block, Schedule& schedule) {
  for (i32 task; schedule.next(task);) {
    if (!attend<d>(block, schedule.queries(task), schedule)) return;
    schedule.done(task);
  }
}

}  // namespace mk
