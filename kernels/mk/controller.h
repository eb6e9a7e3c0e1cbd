// How many blocks communicate. `fixed` keeps what it was given. `adaptive` lets both sides finish together:
//   n* = B W_s / (W_p + W_s),  W = tasks left * measured cost of one, of communication (s) and computation (p),
// with B blocks. Time spent waiting for a flag is not cost. A block belongs to communication if its index is below the
// target; it changes sides only between tasks. A side with nothing left releases its blocks to the other, and a block
// that finds no communication ready is lent to computation for one tile.
#pragma once
#include "trace.h"

namespace mk {

#define MK_HISTORY_ROW(S, A) \
  S(u64, time_ns)            \
  S(u32, target)             \
  S(u32, compute_done)       \
  S(u32, communication_done) \
  S(u32, computing)          \
  S(u32, communicating)      \
  S(u32, used) /* 1: the row was written */
MK_STRUCT(HistoryRow, MK_HISTORY_ROW)

constexpr i32 kRoles = 5;
constexpr i32 kCostShift = 6;       // cost is counted in 64 ns, so that 32 bits hold the sum over a launch
constexpr u64 kUpdatePeriodNs = 2000;
constexpr u32 kFewestSamples = 4;   // with fewer finished tasks of a role its cost is not trusted

// Words of one launch, epoch-tagged, all on the own GPU. Zero is a valid start.
struct ControllerWords {
  u64 target;
  u64 done[kRoles], cost[kRoles];  // by Role
  u64 computing, communicating;    // blocks on each side
  u64 switches;
};

struct Controller {
  ControllerWords* words;
  HistoryRow* history;
  i32 history_capacity;
  u64 epoch;
  Policy policy;
  i32 blocks;
  i32 initial;
  u32 total[kRoles];  // tasks of this rank, by Role
  u64 next_update_ns = 0;
  i32 rows = 0;

  bool releases() const { return policy == Policy::adaptive; }

  i32 target(Block& block) const {
    if (policy == Policy::fixed) return initial;
    u32 value = 0;
    if (block.leader()) {
      const u64 word = load<Order::relaxed, Scope::gpu>(block, &words->target);
      value = word >> 32 == epoch ? u32(word) : u32(initial);
    }
    return i32(block.broadcast(value));
  }

  Role assign(Block& block) const { return block.index < target(block) ? Role::local : Role::compute; }

  void moved(Block& block, Role from, Role to) const {
    if (from != Role::none && to != Role::none) charge_role_switch(block);
    if (!block.leader()) return;
    if (from != Role::none) count(block, side(from), ~0u);
    if (to != Role::none) count(block, side(to), 1);
    if (from != Role::none && to != Role::none) count(block, &words->switches, 1);
  }

  // One task of `role` took `ns`, waits not counted.
  void finished(Block& block, Role role, u64 ns) {
    if (!block.leader()) return;
    count(block, &words->cost[u32(role)], u32(ns >> kCostShift));
    count(block, &words->done[u32(role)], 1);
    if (block.index == blocks - 1) update(block);
  }

 private:
  u64* side(Role role) const { return role == Role::compute ? &words->computing : &words->communicating; }

  void count(Block& block, u64* word, u32 n) const { tally<Order::relaxed, Scope::gpu>(block, word, epoch, n); }

  u32 read(Block& block, const u64* word) const {
    return epoch_count(load<Order::relaxed, Scope::gpu>(block, word), epoch);
  }

  // Cost of what is left of a role, in 64 ns; `known` turns false when too few of its tasks are done to tell.
  float work(Block& block, Role role, u32 done, bool& known) const {
    if (done >= total[u32(role)]) return 0.0f;
    if (done < kFewestSamples && done > 0) known = false;
    if (done == 0) {
      known = known && role == Role::receive;  // receives start late: until then they are taken to cost like local tasks
      return 0.0f;
    }
    return float(total[u32(role)] - done) * float(read(block, &words->cost[u32(role)])) / float(done);
  }

  void update(Block& block) {
    const u64 now = now_ns(block);
    if (now < next_update_ns) return;
    next_update_ns = now + kUpdatePeriodNs;
    const u32 computed = read(block, &words->done[u32(Role::compute)]);
    const u32 reduced = read(block, &words->done[u32(Role::local)]);
    const u32 received = read(block, &words->done[u32(Role::receive)]);
    i32 wanted = target(block);
    if (policy == Policy::adaptive) {
      bool known = true;
      const float compute = work(block, Role::compute, computed, known);
      const float communicate = work(block, Role::local, reduced, known) + work(block, Role::receive, received, known);
      if (known && compute + communicate > 0.0f) {
        const float share = float(blocks) * communicate / (compute + communicate);
        wanted = i32(share) + 1;
        if (wanted > blocks - 1) wanted = blocks - 1;
        store<Order::relaxed, Scope::gpu>(block, &words->target, flag_value(epoch, u32(wanted)));
      }
    }
    if (rows < history_capacity)
      history[rows++] = {now, u32(wanted), computed, reduced + received, read(block, &words->computing),
                         read(block, &words->communicating), 1};
  }
};

}  // namespace mk
