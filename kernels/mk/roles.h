// Roles of a block, and the loop that moves a block between them.
#pragma once
#include "flags.h"

namespace mk {

// Communication is everything that is not compute; `send` and `receive` exist only on more than one node.
enum class Role : u32 { none = 0, compute = 1, local = 2, send = 3, receive = 4 };

enum class Outcome {
  exhausted,  // no task of this side is left to claim
  finished,   // nor of the other
  yielded,    // the controller wants the block elsewhere, or nothing was ready and the block is lent
  starved,    // what the block is to compute is not there yet, and communication may have something for it to do
  aborted,    // a wait was given up; the block leaves the kernel
};

// `compute(limit)` runs at most `limit` tiles (0: no limit); `communicate(may_lend)` yields rather than waits if it may.
template <class Controller, class Compute, class Communicate>
void run_roles(Block& block, Controller& controller, Compute compute, Communicate communicate) {
  bool computed = false, communicated = false, lent = false, starved = false;
  Role side = Role::none;
  for (;;) {
    Role next = lent ? Role::compute : starved ? Role::local : controller.assign(block);
    if (next == Role::compute && computed) next = controller.releases() ? Role::local : Role::none;
    if (next == Role::local && communicated) next = controller.releases() && !computed ? Role::compute : Role::none;
    if (next != side) controller.moved(block, side, next);
    side = next;
    if (next == Role::none) return;
    const bool computes = next == Role::compute;
    const Outcome outcome = computes ? compute(lent ? 1 : 0) : communicate(controller.releases() && !computed);
    if (outcome == Outcome::aborted) return;
    if (outcome == Outcome::finished) return controller.moved(block, side, Role::none);
    if (outcome == Outcome::exhausted) (computes ? computed : communicated) = true;
    lent = !computes && outcome == Outcome::yielded;
    starved = outcome == Outcome::starved;
  }
}

}  // namespace mk
