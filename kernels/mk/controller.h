// How many blocks communicate. `fixed` keeps what it was given. `adaptive` lets both sides finish together:
//   n* = B W_s / (W_p + W_s),  W = tasks left * measured cost of one, of communication (s) and computation (p),
// with B blocks. Time spent waiting for a flag is not cost. A block belongs to communication if its index is below the
// target; it changes sides only between tasks. A side with nothing left releases its blocks to the other, and a block
// that finds no communication ready is lent to computation for one tile. Where communication brings what compute waits
// for, the target once measured only rises: communication that is early costs nothing, as its blocks are free sooner.
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
  u64 period;  // the last in which somebody updated the target
  u64 rows;    // of the history
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
  u64 start_ns;       // when this block entered the kernel
  bool feeds_compute = false;  // communication brings what compute waits for
  u32 after = 0;      // tasks that each block still computes once communication has ended, up to a quarter of all

  bool releases() const { return policy == Policy::adaptive; }

  // By the leader.
  i32 target(Block& block) const {
    if (policy == Policy::fixed) return initial;
    const u64 word = load<Order::relaxed, Scope::gpu>(block, &words->target);
    return word >> 32 == epoch ? i32(u32(word)) : initial;
  }

  // The side that the block belongs to now.
  Role assign(Block& block) const {
    i32 boundary = initial;
    if (policy != Policy::fixed) boundary = block.broadcast(block.leader() ? target(block) : 0);
    return block.index < boundary ? Role::local : Role::compute;
  }

  void moved(Block& block, Role from, Role to) const {
    if (from != Role::none && to != Role::none) charge_role_switch(block);
    if (!block.leader()) return;
    if (from != Role::none) count(block, side(from), ~0u);
    if (to != Role::none) count(block, side(to), 1);
    if (from != Role::none && to != Role::none) count(block, &words->switches, 1);
  }

  // So many tasks of `role` took `ns`, waits not counted.
  void finished(Block& block, Role role, u64 ns, u32 tasks = 1) const {
    if (!block.leader()) return;
    count(block, &words->cost[u32(role)], u32(ns >> kCostShift));
    count(block, &words->done[u32(role)], tasks);
    update(block);
  }

  // One row of the history, by the leader.
  void record(Block& block) const {
    if (history_capacity == 0) return;
    const u32 row = tally<Order::relaxed, Scope::gpu>(block, &words->rows, epoch, 1);
    if (row >= u32(history_capacity)) return;
    history[row] = {now_ns(block), u32(target(block)), read(block, &words->done[u32(Role::compute)]),
                    read(block, &words->done[u32(Role::local)]) + read(block, &words->done[u32(Role::receive)]),
                    read(block, &words->computing), read(block, &words->communicating), 1};
  }

 private:
  u64* side(Role role) const { return role == Role::compute ? &words->computing : &words->communicating; }

  void count(Block& block, u64* word, u32 n) const { tally<Order::relaxed, Scope::gpu>(block, word, epoch, n); }

  u32 read(Block& block, const u64* word) const {
    return epoch_count(load<Order::relaxed, Scope::gpu>(block, word), epoch);
  }

  // Mean cost of a finished task of a role in 64 ns; 0 while too few are done to tell.
  float cost(Block& block, Role role, u32 done) const {
    return done < kFewestSamples ? 0.0f : float(read(block, &words->cost[u32(role)])) / float(done);
  }

  u32 left(Role role, u32 done) const { return total[u32(role)] - done; }

  // n* once the costs are known. Before that, as many blocks as there are tasks ready, going by the own progress.
  i32 wanted(Block& block, u32 computed, u32 reduced, u32 received) const {
    const float compute = cost(block, Role::compute, computed), local = cost(block, Role::local, reduced);
    if (compute == 0.0f || local == 0.0f) {
      if (feeds_compute) return 0;
      const u32 tiles = total[u32(Role::compute)];
      const i32 ready = tiles == 0 ? 0 : i32(u64(total[u32(Role::local)]) * computed / tiles) - i32(reduced);
      return ready > initial ? ready : initial;
    }
    const float measured = cost(block, Role::receive, received), receive = measured == 0.0f ? local : measured;
    const float communication = float(left(Role::local, reduced)) * local + float(left(Role::receive, received)) * receive;
    const u32 tiles = left(Role::compute, computed), later = after * u32(blocks), most = total[u32(Role::compute)] / 4;
    const u32 last = communication == 0.0f ? 0 : later < most ? later : most;
    const float all = communication + float(tiles > last ? tiles - last : 0) * compute;
    return all == 0.0f ? target(block) : i32(float(blocks) * communication / all) + 1;
  }

  // Once a period, by the block that is first to finish a task in it.
  void update(Block& block) const {
    if (policy == Policy::fixed) return;
    const u64 period = flag_value(epoch, u32((now_ns(block) - start_ns) / kUpdatePeriodNs) + 1);
    u64 last = load<Order::relaxed, Scope::gpu>(block, &words->period);
    if (last >= period || !compare_exchange<Order::relaxed, Scope::gpu>(block, &words->period, last, period)) return;
    const u32 computed = read(block, &words->done[u32(Role::compute)]);
    const u32 reduced = read(block, &words->done[u32(Role::local)]);
    const u32 received = read(block, &words->done[u32(Role::receive)]);
    i32 to = wanted(block, computed, reduced, received);
    if (feeds_compute && reduced + received < total[u32(Role::local)] + total[u32(Role::receive)]) {
      // Compute that waits looks as if much were left; with fewer blocks for communication it would wait longer.
      const u64 word = load<Order::relaxed, Scope::gpu>(block, &words->target);
      if (word >> 32 == epoch && to < i32(u32(word))) to = i32(u32(word));
    }
    if (to > blocks - 1) to = blocks - 1;
    if (to > 0) store<Order::relaxed, Scope::gpu>(block, &words->target, flag_value(epoch, u32(to)));
    record(block);
  }
};

}  // namespace mk
