// Readiness words. A flag has one writer and holds `epoch << 32 | n`; it is stored with release, read with acquire and
// never reset, so that a value from an earlier launch is smaller than any value of this one and cannot satisfy a wait.
#pragma once
#include "platform.h"

namespace mk {

struct Flag {
  u64* word;
  u32 kind;   // index into the kernel's list of flag names
  u32 index;
};

// `count` flags in consecutive words.
struct Flags {
  u64* word;
  u32 kind;
  u32 index;
  i32 count;

  Flag at(i32 i) const { return {word + i, kind, index + u32(i)}; }
};

constexpr u64 flag_value(u64 epoch, u32 n) { return epoch << 32 | n; }

// Everything that the threads of this block wrote, or acquired, before it is visible to who acquires the flag.
template <Scope scope> void signal(Block& block, Flag flag, u64 value) {
  block.sync();
  if (block.leader()) store<Order::release, scope>(block, flag.word, value);
}

// One flag at each of `count` <= 32 places, flag(0), flag(1), ...: like `signal`, in the time of one.
template <Scope scope, class Place> void signal_each(Block& block, i32 count, Place flag, u64 value) {
  block.sync();
  store_each<Order::release, scope>(block, count, [&](i32 i) { return flag(i).word; }, value);
}

// By the leader alone. False: given up (deadline, or another rank failed); the caller leaves the kernel.
template <Scope scope> bool poll(Block& block, Flag flag, u64 at_least) {
  u64 attempts = 0;
  for (;;) {
    const u64 seen = load<Order::acquire, scope>(block, flag.word);
    if (seen >= at_least) return true;
    if (!idle(block, flag.word, at_least, seen, flag.kind, flag.index, attempts)) return false;
  }
}

// By the whole block; what was released to any of the flags is then visible to all its threads.
template <Scope scope> bool wait_all(Block& block, Flags flags, u64 at_least) {
  u64 attempts = 0;
  for (;;) {
    u64 seen = 0;
    const i32 i = first_below<Order::acquire, scope>(block, flags.word, flags.count, at_least, seen);
    if (i == flags.count) return true;
    bool again = true;
    if (block.leader()) again = idle(block, flags.word + i, at_least, seen, flags.kind, flags.index + u32(i), attempts);
    if (!block.broadcast(again)) return false;
  }
}

// A look without a wait: how many of the flags, from the first on, are set. It orders what follows like a wait for them.
template <Scope scope> i32 reached(Block& block, Flags flags, u64 at_least) {
  u64 seen = 0;
  return first_below<Order::acquire, scope>(block, flags.word, flags.count, at_least, seen);
}

template <Scope scope> bool reached_all(Block& block, Flags flags, u64 at_least) {
  return reached<scope>(block, flags, at_least) == flags.count;
}

// Counters have several writers, all on the own GPU, and nobody waits for one. The first to add in a new epoch starts the
// count from zero again. Returns the count before. `tally` is for statistics: no other block acts on the exact moment.
template <Order order, Scope scope> u32 tally(Block& block, u64* word, u64 epoch, u32 n) {
  u64 seen = load<Order::relaxed, scope>(block, word);
  for (;;) {
    const u32 before = seen >> 32 == epoch ? u32(seen) : 0;
    if (compare_exchange<order, scope>(block, word, seen, flag_value(epoch, before + n))) return before;
  }
}

template <Order order, Scope scope> u32 epoch_add(Block& block, u64* word, u64 epoch, u32 n) {
  arrive<scope>(block, word);
  return tally<order, scope>(block, word, epoch, n);
}

inline u32 epoch_count(u64 word, u64 epoch) { return word >> 32 == epoch ? u32(word) : 0; }

// The next ticket, for the whole block. Orders nothing: what a task needs, it waits for.
inline i32 claim(Block& block, u64* tickets, u64 epoch) {
  u32 ticket = 0;
  if (block.leader()) ticket = epoch_add<Order::relaxed, Scope::gpu>(block, tickets, epoch, 1);
  return i32(block.broadcast(ticket));
}

// Ticket `expected`, unless another block was faster; never a later one.
inline bool claim_if(Block& block, u64* tickets, u64 epoch, i32 expected) {
  bool claimed = false;
  if (block.leader()) {
    arrive<Scope::gpu>(block, tickets);
    u64 seen = load<Order::relaxed, Scope::gpu>(block, tickets);
    claimed = i32(epoch_count(seen, epoch)) == expected &&
              compare_exchange<Order::relaxed, Scope::gpu>(block, tickets, seen, flag_value(epoch, u32(expected) + 1));
  }
  return block.broadcast(claimed);
}

// The ticket that the next claim would get, give or take the blocks that claim at this moment.
inline i32 peek(Block& block, u64* tickets, u64 epoch) {
  u32 ticket = 0;
  if (block.leader()) ticket = epoch_count(load<Order::relaxed, Scope::gpu>(block, tickets), epoch);
  return i32(block.broadcast(ticket));
}

// `n` more of `total` are done; true for the block that completes it, which then sees what all the others wrote.
template <Scope scope> bool completes(Block& block, u64* counter, u64 epoch, u32 total, u32 n = 1) {
  block.sync();
  u32 before = 0;
  if (block.leader()) before = epoch_add<Order::acq_rel, scope>(block, counter, epoch, n);
  return block.broadcast(before) + n == total;
}

}  // namespace mk
