#include "api.h"

#include <exception>
#include <memory>
#include <string>
#include <thread>

#include "../host/backoff.h"
#include "../mk/export.h"
#include "proxy.h"
#include "transport_shm.h"
#include "transport_tcp.h"

MK_EXPORT_STRUCT(ProxyConfig, MK_PROXY_CONFIG)
MK_EXPORT_STRUCT(ProxyStats, MK_PROXY_STATS)
MK_EXPORT_NAMES(transports, MK_TRANSPORTS)

namespace mk {
namespace {

thread_local std::string last_error;

class Service {
 public:
  virtual ~Service() = default;
  virtual int drain(u64 timeout_ns) = 0;
  virtual ProxyStats stop() = 0;
  virtual const char* error() const = 0;
};

template <class Transport> class Threaded final : public Service {
 public:
  explicit Threaded(const ProxyConfig& config)
      : transport_(config), proxy_(config, transport_), thread_([this] { serve(); }) {}
  ~Threaded() override { end(); }

  int drain(u64 timeout_ns) override {
    const u64 ticket = drains_asked_.fetch_add(1, std::memory_order_acq_rel) + 1;
    const u64 start_ns = monotonic_ns();
    for (u64 attempts = 0; drains_done_.load(std::memory_order_acquire) < ticket;) {
      if (error()) return 2;
      if (monotonic_ns() - start_ns > timeout_ns) return 1;
      back_off(attempts);
    }
    return 0;
  }

  ProxyStats stop() override {
    end();
    if (!proxy_.error()) transport_.leave();
    ProxyStats stats = proxy_.stats();
    stats.received_bytes = transport_.received_bytes();
    stats.failed = proxy_.error() != nullptr;
    return stats;
  }

  // The text does not change any more once the thread has said that there is one.
  const char* error() const override { return failed_.load(std::memory_order_acquire) ? proxy_.error() : nullptr; }

 private:
  void serve() {
    transport_.enter();
    u64 attempts = 0;
    while (!stopping_.load(std::memory_order_acquire)) {
      // Read before the step: only what was asked before this look at the rings is answered by it.
      const u64 asked = drains_asked_.load(std::memory_order_acquire);
      const bool moved = proxy_.step();
      if (proxy_.error()) failed_.store(true, std::memory_order_release);
      if (moved) {
        attempts = 0;
        continue;
      }
      if (asked != drains_done_.load(std::memory_order_relaxed) && !proxy_.error() && proxy_.drained())
        drains_done_.store(asked, std::memory_order_release);
      back_off(attempts);
    }
  }

  void end() {
    stopping_.store(true, std::memory_order_release);
    if (thread_.joinable()) thread_.join();
  }

  Transport transport_;
  Proxy<Transport> proxy_;
  std::atomic<u64> drains_asked_ = 0, drains_done_ = 0;
  std::atomic<bool> stopping_ = false, failed_ = false;
  std::thread thread_;  // the last member: it uses all others
};

// Null, or what is wrong with a configuration, before anything is read through it.
const char* refusal(const ProxyConfig& c) {
  if (c.nodes < 1 || c.nodes > kMaxNodes || c.node < 0 || c.node >= c.nodes) return "node or nodes is out of range";
  if (c.rings < 1) return "there is no ring";
  if (c.ring_depth < 1 || (c.ring_depth & (c.ring_depth - 1))) return "ring_depth is no power of two";
  if (!c.heap || !c.ring_slots || !c.ring_tails || !c.epoch_word || !c.abort_record) return "an address is missing";
  if ((c.heap | c.control_offset | c.ring_slots | c.ring_tails | c.epoch_word | c.abort_record) % sizeof(u64))
    return "an address is not aligned";
  if (c.flag_words > c.heap_bytes / sizeof(u64) || c.control_offset > c.heap_bytes - c.flag_words * sizeof(u64))
    return "the flags are outside the heap";
  if (c.transport != i32(TransportKind::shm) && c.transport != i32(TransportKind::tcp)) return "no such transport";
  if (c.context && !c.gpu_memory) return "the GPU memory is missing";
  for (i32 peer = 0; peer < c.nodes; ++peer) {
    if (peer == c.node) continue;
    if (c.transport == i32(TransportKind::shm) && (!c.peer_heaps[peer] || c.peer_heaps[peer] % sizeof(u64)))
      return "a peer's heap is missing";
    if (c.transport == i32(TransportKind::tcp) && c.fds[peer] < 0) return "a peer's connection is missing";
    if (c.transport == i32(TransportKind::shm) && c.context && !c.peer_gpu_memory[peer])
      return "a peer's GPU memory is missing";
  }
  return nullptr;
}

std::unique_ptr<Service> start(const ProxyConfig& config) {
  const bool is_shm = config.transport == i32(TransportKind::shm);
  if (config.context && is_shm) return std::make_unique<Threaded<StagedShmTransport>>(config);
  if (config.context) return std::make_unique<Threaded<StagedTcpTransport>>(config);
  if (is_shm) return std::make_unique<Threaded<ShmTransport>>(config);
  return std::make_unique<Threaded<TcpTransport>>(config);
}

}  // namespace
}  // namespace mk

extern "C" void* mk_proxy_start(const mk::ProxyConfig* config) {
  mk::last_error.clear();
  if (const char* reason = mk::refusal(*config)) {
    mk::last_error = std::string("host proxy: ") + reason;
    return nullptr;
  }
  try {
    return mk::start(*config).release();
  } catch (const std::exception& error) {
    mk::last_error = std::string("host proxy: cannot start: ") + error.what();
    return nullptr;
  }
}

extern "C" int mk_proxy_drain(void* proxy, unsigned long long timeout_ns) {
  return static_cast<mk::Service*>(proxy)->drain(timeout_ns);
}

extern "C" void mk_proxy_stop(void* proxy, mk::ProxyStats* stats) {
  const std::unique_ptr<mk::Service> own(static_cast<mk::Service*>(proxy));
  *stats = own->stop();
  mk::last_error = own->error() ? own->error() : "";
}

extern "C" const char* mk_proxy_error(void* proxy) {
  if (proxy) return static_cast<mk::Service*>(proxy)->error();
  return mk::last_error.empty() ? nullptr : mk::last_error.c_str();
}
