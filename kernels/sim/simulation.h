// All ranks of a cluster in one process: their heaps, their blocks as fibers, their links.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "../mk/platform.h"
#include "config.h"
#include "links.h"
#include "network.h"

namespace mk {

class Simulation;

struct BlockTask : Task {
  Simulation* simulation = nullptr;
  Rank* rank = nullptr;
  Block block{};
  u64 moves = 0;          // for jitter that does not depend on the order of events
  Awaited awaited{};      // while parked
};

// A word of a control region, as the simulator sees it.
struct Word {
  Waiters waiters;
  i32 writer = kNobody;  // rank of the last signal
  Scope scope{};         // its scope
  static constexpr i32 kNobody = -1, kHost = -2;
};

struct ProxyTask : Task {
  Simulation* simulation = nullptr;
  Rank* rank = nullptr;
  RankProxyPointer proxy;
};

struct Rank {
  i32 index = 0;
  u8* heap = nullptr;
  u8* network_region = nullptr;  // the end of the heap
  std::vector<u8> params;  // the kernel's Params; starts with LaunchParams
  std::vector<u64> ring_slots, ring_tails;
  AbortRecord abort{};
  std::vector<std::unique_ptr<BlockTask>> blocks;
  i32 finished = 0;        // blocks that have left the launch
  Waiters next_launch;
  std::vector<Word> words, network_words;  // control words of the heap and of its network region
  Waiters commands, ring_space;
  ProxyTask proxy;
  NetworkTask network;
  Link hbm, nvlink_in, nvlink_out, network_in, network_out;
  std::vector<Picoseconds> begins, ends;  // of each launch

  LaunchParams& launch() { return *reinterpret_cast<LaunchParams*>(params.data()); }
};

class Simulation final : public Machine {
 public:
  Simulation(const SimConfig& config, const u8* params, size_t params_bytes);
  ~Simulation() override;
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  void run(SimResult& result);
  u8* heap(i32 rank) { return ranks_[size_t(rank)].heap; }
  Picoseconds latency(i32 launch) const;
  const std::string& report() const { return report_; }

  // Machine
  u64 now_ns(Block& block) override;
  void before_access(Block& block, const u64* words, i32 count, Scope scope, bool writes) override;
  void after_write(Block& block, const u64* word, Scope scope) override;
  bool idle(Block& block, const Awaited& awaited, u64& attempts) override;
  bool aborted(Block&) override { return failed_; }
  void rest(Block& block) override;
  void charge_gemm(Block& block, i32 k, i32 task) override;
  void charge_attention(Block& block, i32 keys, i32 d, i32 task) override;
  void charge_store(Block&, i64) override {}
  void charge_move(Block& block, const Traffic& traffic) override;
  void charge_pass(Block& block, i64 bytes) override;
  void charge_role_switch(Block& block) override;

  // For the network (network.cpp)
  // By the fiber that calls them.
  const SimConfig& config() const { return config_; }
  Scheduler& scheduler() { return scheduler_; }
  Rank& rank(i32 index) { return ranks_[size_t(index)]; }
  Rank& rail_peer(const Rank& of, i32 node);
  void written_by_host(Rank& rank, u64 word_index, Picoseconds now);
  void fail(SimStatus status, const std::string& what);

 private:
  static void run_block(void* task);
  static void run_proxy(void* task);
  void prepare(Rank& rank, const u8* params, size_t params_bytes);
  void add_task(Task& task, size_t stack, void (*entry)(void*), void* argument);
  void end_launch(Rank& rank, Picoseconds now);
  Rank& owner(const void* address);
  Word* word_of(const u64* address, Rank*& where);
  void check(BlockTask& task, const u64* address, Scope scope, bool writes);
  double spread(u64 a, u64 b) const;  // 1 within +-jitter, from the seed and what is charged
  void describe_deadlock();

  SimConfig config_;
  Scheduler scheduler_;
  std::deque<Rank> ranks_;
  u8* arena_ = nullptr;
  size_t arena_bytes_ = 0;
  u8* stacks_ = nullptr;
  size_t stacks_bytes_ = 0;
  Scratch* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
  i64 unfinished_ = 0;  // blocks
  bool failed_ = false;
  SimStatus status_ = SimStatus::ok;
  std::string report_;
};

}  // namespace mk

extern "C" void mk_kernel(mk::Block& block, const void* params);
