// Peers on this machine. Their memory is mapped in this process, so their proxies take no part.
#pragma once
#include <cstring>

#include "staged.h"

namespace mk {

// The network regions lie in host memory: a put is complete when it returns.
class ShmTransport {
 public:
  explicit ShmTransport(const ProxyConfig& config) : config_(config), bounds_(config) {}

  void enter() {}

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

// The network regions lie in GPU memory.
class StagedShmTransport {
 public:
  explicit StagedShmTransport(const ProxyConfig& config)
      : config_(config), engine_(config.context), crossing_(config_, engine_) {}

  void enter() { engine_.enter(); }

  bool post(const Put& put) {
    if (puts_.is_full()) return false;
    puts_.push(put);
    return true;
  }

  bool progress() {
    const bool moved = puts_.finish(engine_.finished(CopyEngine::to_gpu), [](const Put&) { return true; });
    puts_.start(crossing_);
    return moved;
  }

  const char* error() const { return engine_.error(); }
  bool idle() const { return puts_.is_empty(); }
  void leave() {}
  u64 received_bytes() const { return 0; }

 private:
  const ProxyConfig config_;
  CopyEngine engine_;
  Crossing crossing_;
  StagedPuts puts_;
};

}  // namespace mk
