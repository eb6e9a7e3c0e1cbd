// Peers whose heaps are mapped in this process: a put is a copy, complete when it returns.
#pragma once
#include <cstring>

#include "put.h"

namespace mk {

class ShmTransport {
 public:
  explicit ShmTransport(const ProxyConfig& config) : config_(config), bounds_(config) {}

  bool post(const Put& put) {
    u8* peer = heap_at(config_.peer_heaps[put.peer]);
    if (put.bytes > 0)
      std::memcpy(peer + put.destination_offset, heap_at(config_.heap) + put.source_offset, put.bytes);
    set_flag(peer, bounds_, put.flag_index, put.flag_value);
    return true;
  }

  bool progress() { return false; }
  const char* error() const { return nullptr; }
  bool idle() const { return true; }
  void leave() {}
  u64 received_bytes() const { return 0; }

 private:
  const ProxyConfig config_;
  const Bounds bounds_;
};

}  // namespace mk
