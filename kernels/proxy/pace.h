// A rank's link to the network, held to a rate.
#pragma once
#include "../host/backoff.h"
#include "../mk/pace.h"

namespace mk {

// The link carries puts one after another in the order in which the proxy takes them, whichever peer they go to. A put
// leaves when the link would have carried all of its bytes, so that no flag comes sooner than over a link of that rate.
// What is taken while the link is busy follows without a gap, however late the proxy looks; what it was idle is lost.
class PacedLink {
 public:
  explicit PacedLink(u64 fs_per_byte) : fs_per_byte_(fs_per_byte) {}

  // Without a rate no clock is read: the simulator's proxy must not go by a real one.
  u64 now_ns() const { return fs_per_byte_ ? monotonic_ns() : 0; }

  // When a put that is taken at `now_ns` leaves.
  u64 reserve(u64 now_ns, u64 bytes) { return free_ns_ = paced_until(free_ns_, now_ns, bytes, fs_per_byte_); }

 private:
  const u64 fs_per_byte_;
  u64 free_ns_ = 0;
};

}  // namespace mk
