// What a block did and when, for pictures and tests; off unless the launch asks for it.
#pragma once
#include "roles.h"

namespace mk {

#define MK_TRACE_EVENT(S, A) \
  S(u64, begin_ns)           \
  S(u64, end_ns)             \
  S(u32, role)               \
  S(u32, task)
MK_STRUCT(TraceEvent, MK_TRACE_EVENT)

// Row 0 of a block's events counts them: its `task` field is how many follow, never more than fit.
struct Trace {
  TraceEvent* events;
  i32 capacity;

  void add(Block& block, Role role, i32 task, u64 begin_ns, u64 end_ns) const {
    if (capacity == 0 || !block.leader()) return;
    TraceEvent* own = events + i64(block.index) * (capacity + 1);
    if (own->task >= u32(capacity)) return;
    own[1 + own->task] = {begin_ns, end_ns, u32(role), u32(task)};
    own->task += 1;
  }
};

}  // namespace mk
