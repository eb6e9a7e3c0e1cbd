// The communication side of a kernel: local tasks, whose input this node makes, and receive tasks, whose input comes over
// the network.
#pragma once
#include "roles.h"

namespace mk {

struct TaskQueue {
  u64* tickets;
  i32 count;
};

// `tasks` has can_local(i) and can_receive(i), a look whether the input of task i is there, and local(i) and receive(i),
// which wait for it, do the task and return false if the wait was given up; can_lend() looks whether compute has a tile
// that it need not wait for.
//
// Receives come first, since their input is there and nothing else ends the launch. A block that may be lent is lent when
// nothing is ready here; one that may not, because no tile is left or ready or the partition is fixed, claims and waits.
//
// While local tasks are left, a block turns to receive only when it has seen the next one's input. Another block may
// claim that one first and leave it to wait for a later one; but who claimed what was seen does not wait, and comes back
// to look for more, so on every rank some block is left that works on.
template <class Controller, class Tasks>
Outcome run_communication(Block& block, Controller& controller, u64 epoch, TaskQueue local, TaskQueue receive, Tasks& tasks,
                          bool may_lend) {
  while (!may_lend || controller.assign(block) == Role::local) {
    if (receive.count > 0) {
      const i32 next = peek(block, receive.tickets, epoch);
      if (next < receive.count && tasks.can_receive(next)) {
        const i32 task = claim(block, receive.tickets, epoch);
        if (task < receive.count && !tasks.receive(task)) return Outcome::aborted;
        continue;
      }
    }
    bool waits = !may_lend;
    if (may_lend) {
      const i32 next = peek(block, local.tickets, epoch);
      if (next >= local.count && receive.count == 0) return Outcome::exhausted;
      if (next >= local.count || !tasks.can_local(next)) {
        if (tasks.can_lend()) return Outcome::yielded;
        waits = true;
      }
    }
    i32 task = claim(block, local.tickets, epoch);
    if (task < local.count) {
      if (!tasks.local(task)) return Outcome::aborted;
      continue;
    }
    if (!waits) continue;
    if (receive.count == 0) return Outcome::exhausted;
    task = claim(block, receive.tickets, epoch);
    if (task >= receive.count) return Outcome::exhausted;
    if (!tasks.receive(task)) return Outcome::aborted;
  }
  return Outcome::yielded;
}

}  // namespace mk
