// Rail peers over TCP. The payload goes straight from the sender's host memory into the receiver's.
#pragma once
#include "connection.h"
#include "staged.h"

namespace mk {

// The kernel reads what arrives where it arrives.
class DirectLanding {
 public:
  explicit DirectLanding(const ProxyConfig& config) : bounds(config), heap_(heap_at(config.heap)) {}

  bool has_room() const { return true; }
  void land(const Put& put) { set_flag(heap_, bounds, put.flag_index, put.flag_value); }

  const Bounds bounds;

 private:
  u8* const heap_;
};

// What arrives is copied on to the GPU, its flag after it.
class StagedLanding {
 public:
  StagedLanding(const ProxyConfig& config, CopyEngine& engine)
      : bounds(config), engine_(engine), arrival_(config, engine) {}

  bool has_room() const { return !puts_.is_full(); }
  void land(Put put) {
    put.source_offset = put.destination_offset;  // the copy's
    puts_.push(put);
  }
  bool progress() {
    const bool moved = puts_.finish(engine_.finished(CopyEngine::to_gpu), [](const Put&) { return true; });
    puts_.start(arrival_);
    return moved;
  }

  const Bounds bounds;

 private:
  CopyEngine& engine_;
  Arrival arrival_;
  StagedPuts puts_;
};

template <class Landing> class Connections {
 public:
  Connections(const ProxyConfig& config, Landing& landing) : landing_(landing), nodes_(config.nodes) {
    for (i32 peer = 0; peer < nodes_; ++peer)
      if (peer != config.node) connections_[peer].open(config.fds[peer], config.node, peer, heap_at(config.heap));
  }

  bool post(const Put& put) { return connections_[put.peer].post(put, error_); }

  bool progress() {
    bool moved = false;
    for (i32 peer = 0; peer < nodes_; ++peer) moved |= connections_[peer].progress(landing_, error_);
    return moved;
  }

  const char* error() const { return error_.get(); }

  bool idle() const {
    for (i32 peer = 0; peer < nodes_; ++peer)
      if (!connections_[peer].idle()) return false;
    return true;
  }

  void leave() {
    for (i32 peer = 0; peer < nodes_; ++peer) connections_[peer].leave();
  }

  u64 received_bytes() const {
    u64 sum = 0;
    for (i32 peer = 0; peer < nodes_; ++peer) sum += connections_[peer].received_bytes();
    return sum;
  }

 private:
  Landing& landing_;
  const i32 nodes_;
  Connection<Landing> connections_[kMaxNodes];
  ErrorText error_;
};

class TcpTransport {
 public:
  explicit TcpTransport(const ProxyConfig& config) : landing_(config), wire_(config, landing_) {}

  void enter() {}
  bool post(const Put& put) { return wire_.post(put); }
  bool progress() { return wire_.progress(); }
  const char* error() const { return wire_.error(); }
  bool idle() const { return wire_.idle(); }
  void leave() { wire_.leave(); }
  u64 received_bytes() const { return wire_.received_bytes(); }

 private:
  DirectLanding landing_;
  Connections<DirectLanding> wire_;
};

class StagedTcpTransport {
 public:
  explicit StagedTcpTransport(const ProxyConfig& config)
      : config_(config),
        engine_(config.context),
        departure_(config_, engine_),
        landing_(config_, engine_),
        wire_(config_, landing_) {}

  void enter() { engine_.enter(); }

  bool post(const Put& put) {
    if (departing_.is_full()) return false;
    departing_.push(put);
    return true;
  }

  bool progress() {
    const bool departed = departing_.finish(engine_.finished(CopyEngine::from_gpu),
                                            [this](const Put& put) { return wire_.post(put); });
    departing_.start(departure_);
    const bool moved = wire_.progress();
    const bool landed = landing_.progress();
    return departed || moved || landed;
  }

  const char* error() const { return engine_.error() ? engine_.error() : wire_.error(); }
  bool idle() const { return departing_.is_empty() && wire_.idle(); }
  void leave() { wire_.leave(); }
  u64 received_bytes() const { return wire_.received_bytes(); }

 private:
  const ProxyConfig config_;
  CopyEngine engine_;
  Departure departure_;
  StagedPuts departing_;
  StagedLanding landing_;
  Connections<StagedLanding> wire_;
};

}  // namespace mk
