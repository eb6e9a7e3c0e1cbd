// A resource that serves requests in the order in which they come: a link direction, a memory, a NIC port.
#pragma once
#include "scheduler.h"

namespace mk {

constexpr double kPicosPerNano = 1000.0;

inline Picoseconds picos(double ns) { return Picoseconds(ns * kPicosPerNano + 0.5); }

class Link {
 public:
  // When the last of `bytes` has passed, if they come at `now`. Rate: bytes a nanosecond.
  Picoseconds reserve(Picoseconds now, double bytes, double rate, double overhead_ns = 0.0) {
    const Picoseconds begin = now > free_ ? now : free_;
    free_ = begin + picos(bytes / rate + overhead_ns);
    return free_;
  }

 private:
  Picoseconds free_ = 0;
};

}  // namespace mk
