// The abort record as the host sees it: the first to give up owns it, everybody else leaves.
#pragma once
#include <atomic>

#include "../mk/params.h"

namespace mk {

enum class AbortCause : u32 { none = 0, deadline = 1, elsewhere = 2 };

// True for the one caller that may fill in the rest of the record.
inline bool claim_abort(AbortRecord& record, AbortCause cause) {
  u32 none = u32(AbortCause::none);
  return std::atomic_ref<u32>(record.set).compare_exchange_strong(none, u32(cause), std::memory_order_acq_rel,
                                                                   std::memory_order_acquire);
}

inline bool is_aborted(AbortRecord& record) {
  return std::atomic_ref<u32>(record.set).load(std::memory_order_acquire) != u32(AbortCause::none);
}

}  // namespace mk
