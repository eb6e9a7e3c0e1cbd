// Rail peers over TCP. The payload goes straight from the sender's heap into the receiver's; then its flag is set.
#pragma once
#include "connection.h"

namespace mk {

class TcpTransport {
 public:
  explicit TcpTransport(const ProxyConfig& config) : bounds_(config), nodes_(config.nodes) {
    for (i32 peer = 0; peer < nodes_; ++peer)
      if (peer != config.node) connections_[peer].open(config.fds[peer], config.node, peer, heap_at(config.heap));
  }

  bool post(const Put& put) { return connections_[put.peer].post(put, error_); }

  bool progress() {
    bool moved = false;
    for (i32 peer = 0; peer < nodes_; ++peer) moved |= connections_[peer].progress(bounds_, error_);
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
  const Bounds bounds_;
  const i32 nodes_;
  Connection connections_[kMaxNodes];
  ErrorText error_;
};

}  // namespace mk
