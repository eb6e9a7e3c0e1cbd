// The host proxy of a simulated rank.
#include "proxy.h"
#include "transport_sim.h"

namespace mk {

namespace {

constexpr u64 kPoisonWord = 0x7fc17fc17fc17fc1ull;  // four bf16 NaNs: what is on its way is not there yet

ProxyConfig config_of(Simulation& simulation, Rank& rank) {
  const LaunchParams& launch = rank.launch();
  ProxyConfig config{};
  config.heap = reinterpret_cast<u64>(rank.network_region);
  config.heap_bytes = simulation.config().heap_bytes - simulation.config().network_offset;
  config.flag_words = rank.network_words.size();
  config.ring_slots = launch.ring_slots;
  config.ring_tails = launch.ring_tails;
  config.epoch_word = reinterpret_cast<u64>(&rank.launch().epoch);
  config.rings = launch.rings;
  config.ring_depth = launch.ring_depth;
  config.node = launch.node;
  config.nodes = launch.nodes;
  return config;
}

}  // namespace

struct RankProxy {
  SimTransport transport;
  Proxy<SimTransport> proxy;

  RankProxy(Simulation& simulation, Rank& rank)
      : transport(simulation, rank), proxy(config_of(simulation, rank), transport) {}
};

void RankProxyDeleter::operator()(RankProxy* proxy) const { delete proxy; }

RankProxyPointer make_proxy(Simulation& simulation, Rank& rank) { return RankProxyPointer(new RankProxy(simulation, rank)); }

bool step_proxy(RankProxy& proxy) { return proxy.proxy.step(); }
u64 proxy_commands(const RankProxy& proxy) { return proxy.proxy.stats().commands; }
u64 proxy_payload_bytes(const RankProxy& proxy) { return proxy.proxy.stats().payload_bytes; }
const char* proxy_error(const RankProxy& proxy) { return proxy.proxy.error() ? proxy.proxy.error() : ""; }

std::unique_ptr<u8[]> take_first_half(const u8* source, u8* destination, u64 bytes) {
  std::unique_ptr<u8[]> half(new u8[bytes / 2]);
  std::memcpy(half.get(), source, bytes / 2);
  for (u64 i = 0; i < bytes; i += sizeof kPoisonWord) std::memcpy(destination + i, &kPoisonWord, sizeof kPoisonWord);
  return half;
}

void land(const WirePut& put, bool payload, const u8* source, u8* destination, u64* flag) {
  if (payload) {
    const u64 half = put.bytes / 2;
    std::memcpy(destination, put.first_half.get(), half);
    std::memcpy(destination + half, source + half, put.bytes - half);
  }
  release_flag(*flag, put.flag_value);
}

}  // namespace mk
