// Blocks that push into shared rings, a proxy that is slow to take, a reader on the other node. Every command carries
// a word of payload; the reader checks each of them. Usage: ring RINGS DEPTH. Silent and 0 if all is well.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "host/backoff.h"
#include "mk/mk.h"
#include "proxy/proxy.h"
#include "proxy/transport_shm.h"

namespace mk {

const Exported*& Exported::first() {
  static const Exported* head = nullptr;
  return head;
}

constexpr i32 kBlocks = 4, kPushes = 200, kCommands = kBlocks * kPushes;
constexpr u64 kData = kCommands * sizeof(u64), kHeap = kData + kCommands * kCommandOffsetUnit;

struct Waiter final : Machine {
  u64 now_ns(Block&) override { return 0; }
  void before_access(Block&, const u64*, i32, Scope, bool) override {}
  void after_write(Block&, const u64*, Scope) override {}
  bool idle(Block&, const Awaited&, u64& attempts) override { return back_off(attempts), true; }
  bool aborted(Block&) override { return false; }
  void charge_gemm(Block&, i32, i32) override {}
  void charge_attention(Block&, i32, i32, i32) override {}
  void charge_store(Block&, i64) override {}
  void charge_move(Block&, const Traffic&) override {}
  void charge_pass(Block&, i64) override {}
  void rest(Block&) override {}
  void charge_role_switch(Block&) override {}
};

// Refuses two posts of three.
struct Reluctant {
  ShmTransport inner;
  u64 asked = 0;
  explicit Reluctant(const ProxyConfig& config) : inner(config) {}
  bool post(const Put& put) { return ++asked % 3 == 0 && inner.post(put); }
  bool progress() { return false; }
  const char* error() const { return nullptr; }
  bool idle() const { return true; }
};

struct alignas(128) Heap {
  u8 bytes[kHeap];
};

u64& payload(Heap& heap, i32 command) {
  return *reinterpret_cast<u64*>(heap.bytes + kData + command * kCommandOffsetUnit);
}

int run(i32 rings, i32 depth) {
  const auto own = std::make_unique<Heap>(), peer = std::make_unique<Heap>();
  std::vector<u64> slots(size_t(2 * rings * depth)), tails(size_t(rings), 0), heads(size_t(rings), 0);
  u64 full = 0, epoch = 1;
  ProxyConfig config{};
  config.heap = reinterpret_cast<u64>(own.get());
  config.heap_bytes = kHeap;
  config.flag_words = kCommands;
  config.ring_slots = reinterpret_cast<u64>(slots.data());
  config.ring_tails = reinterpret_cast<u64>(tails.data());
  config.epoch_word = reinterpret_cast<u64>(&epoch);
  config.peer_heaps[1] = reinterpret_cast<u64>(peer.get());
  config.rings = rings;
  config.ring_depth = depth;
  config.nodes = 2;
  Reluctant transport(config);
  Proxy<Reluctant> proxy(config, transport);
  const CommandQueue queue{slots.data(), tails.data(), heads.data(), &full, rings, depth};
  Waiter machine;

  std::vector<std::thread> blocks;
  for (i32 index = 0; index < kBlocks; ++index)
    blocks.emplace_back([&, index] {
      Block block{index, kBlocks, &machine, nullptr, nullptr};
      for (i32 i = 0; i < kPushes; ++i) {
        const i32 command = index * kPushes + i;
        const i64 offset = i64(kData) + command * kCommandOffsetUnit;
        payload(*own, command) = u64(command) + 1;
        queue.push(block, {CommandOp::put, 1, u32(command), offset, offset, 16, u32(epoch)});
      }
    });

  // Nothing is taken before a push has found its ring full.
  u64 attempts = 0;
  while (std::atomic_ref<u64>(full).load(std::memory_order_relaxed) == 0) back_off(attempts);
  std::thread server([&] {
    u64 idle = 0;
    while (proxy.stats().puts < u64(kCommands) && !proxy.error())
      if (!proxy.step()) back_off(idle);
  });

  i32 wrong = 0;
  for (i32 command = 0; command < kCommands; ++command) {
    std::atomic_ref<u64> flag(reinterpret_cast<u64*>(peer->bytes)[command]);
    for (attempts = 0; flag.load(std::memory_order_acquire) != flag_value(epoch, 1);) back_off(attempts);
    wrong += payload(*peer, command) != u64(command) + 1;
  }
  for (std::thread& block : blocks) block.join();
  server.join();
  u64 taken = 0, claimed = 0;
  for (u64 n : tails) taken += n;
  for (u64 n : heads) claimed += n;
  const ProxyStats& stats = proxy.stats();
  if (wrong == 0 && !proxy.error() && taken == kCommands && claimed == kCommands && stats.commands == kCommands &&
      stats.payload_bytes == 16 * kCommands && stats.refused > 0 && proxy.drained())
    return 0;
  std::printf("wrong %d, taken %llu, claimed %llu, commands %llu, refused %llu, error %s\n", wrong, taken, claimed,
              stats.commands, stats.refused, proxy.error() ? proxy.error() : "none");
  return 1;
}

}  // namespace mk

int main(int, char** arguments) { return mk::run(std::atoi(arguments[1]), std::atoi(arguments[2])); }
