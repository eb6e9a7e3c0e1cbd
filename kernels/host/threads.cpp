// The platform `host`: every block is an OS thread.
#include "launch.h"

#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../mk/export.h"
#include "../mk/platform.h"
#include "abort.h"
#include "backoff.h"

extern "C" void mk_kernel(mk::Block& block, const void* params);

MK_EXPORT_STRUCT(HostResult, MK_HOST_RESULT)

namespace mk {
namespace {

thread_local std::string last_error;

// What the machine keeps of one block.
struct BlockThread {
  std::thread thread;
  std::unique_ptr<Scratch> scratch = std::make_unique_for_overwrite<Scratch>();
  u64 wait_start_ns = 0;
  u64 end_ns = 0;
};

class ThreadMachine final : public Machine {
 public:
  explicit ThreadMachine(const LaunchParams& launch)
      : rank_(u32(launch.rank)),
        deadline_ns_(launch.deadline_ns),
        record_(*reinterpret_cast<AbortRecord*>(launch.abort_record)) {}

  AbortRecord& record() { return record_; }

  u64 now_ns(Block&) override { return monotonic_ns(); }
  void before_access(Block&, const u64*, i32, Scope, bool) override {}
  void after_write(Block&, const u64*, Scope) override {}
  void charge_gemm(Block&, i32, i32) override {}
  void charge_attention(Block&, i32, i32, i32) override {}
  void charge_store(Block&, i64) override {}
  void charge_move(Block&, const Traffic&) override {}
  void charge_pass(Block&, i64) override {}
  void charge_role_switch(Block&) override {}
  bool aborted(Block&) override { return is_aborted(record_); }
  void rest(Block&) override { std::this_thread::yield(); }

  bool idle(Block& block, const Awaited& awaited, u64& attempts) override {
    if (is_aborted(record_)) return false;
    BlockThread& own = *static_cast<BlockThread*>(block.context);
    if (attempts == 0) own.wait_start_ns = monotonic_ns();
    // The clock costs as much as a pause; it is read once the pauses are over.
    if (attempts >= kPauses && monotonic_ns() - own.wait_start_ns > deadline_ns_) {
      give_up(block, awaited);
      return false;
    }
    back_off(attempts);
    return true;
  }

 private:
  void give_up(const Block& block, const Awaited& awaited) {
    if (!claim_abort(record_, AbortCause::deadline)) return;
    record_.rank = rank_;
    record_.block = u32(block.index);
    record_.role = awaited.role;
    record_.flag = awaited.flag;
    record_.index = awaited.index;
    record_.expected = awaited.expected;
    record_.seen = awaited.seen;
  }

  u32 rank_;
  u64 deadline_ns_;
  AbortRecord& record_;
};

class Launch {
 public:
  Launch(const LaunchParams& launch, const void* params)
      : machine_(launch), params_(params), threads_(size_t(launch.blocks)) {
    try {
      for (size_t i = 0; i < threads_.size(); ++i) threads_[i].thread = std::thread([this, i] { block_main(i32(i)); });
      // Whoever opens the gate must not wait for threads that still start up.
      for (u64 attempts = 0; parked_.load(std::memory_order_acquire) < launch.blocks;) back_off(attempts);
    } catch (...) {
      close();
      throw;
    }
  }
  ~Launch() { close(); }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  int run(HostResult& result) {
    result = {};
    result.start_ns = monotonic_ns();
    open(Gate::run);
    join();
    result.end_ns = result.start_ns;
    for (const BlockThread& t : threads_)
      if (t.end_ns > result.end_ns) result.end_ns = t.end_ns;
    const AbortRecord& record = machine_.record();
    // Another rank, or the proxy, may still set the record; once set it does not change.
    if (!is_aborted(machine_.record())) return 0;
    result.expected = record.expected;
    result.seen = record.seen;
    result.set = record.set;
    result.rank = record.rank;
    result.block = record.block;
    result.role = record.role;
    result.flag = record.flag;
    result.index = record.index;
    return 1;
  }

 private:
  enum class Gate : int { closed, run, leave };

  void block_main(i32 index) {
    BlockThread& own = threads_[size_t(index)];
    // Touched here, so that the launch itself meets no page fault.
    std::memset(own.scratch.get(), 0, sizeof(Scratch));
    Block block{index, i32(threads_.size()), &machine_, &own, own.scratch.get()};
    parked_.fetch_add(1, std::memory_order_release);
    gate_.wait(Gate::closed, std::memory_order_acquire);
    if (gate_.load(std::memory_order_acquire) == Gate::leave) return;
    mk_kernel(block, params_);
    own.end_ns = monotonic_ns();
  }

  void open(Gate gate) {
    gate_.store(gate, std::memory_order_release);
    gate_.notify_all();
  }
  void join() {
    for (BlockThread& t : threads_)
      if (t.thread.joinable()) t.thread.join();
  }
  void close() {
    open(Gate::leave);
    join();
  }

  ThreadMachine machine_;
  const void* params_;
  std::vector<BlockThread> threads_;
  std::atomic<i32> parked_ = 0;
  std::atomic<Gate> gate_ = Gate::closed;
};

}  // namespace
}  // namespace mk

extern "C" void* mk_host_prepare(const void* params) {
  mk::LaunchParams launch;
  std::memcpy(&launch, params, sizeof launch);
  if (launch.blocks < 1 || launch.abort_record == 0) {
    mk::last_error = "a launch needs at least one block and an abort record";
    return nullptr;
  }
  try {
    return new mk::Launch(launch, params);
  } catch (const std::exception& error) {
    mk::last_error = "cannot start " + std::to_string(launch.blocks) + " threads: " + error.what();
    return nullptr;
  }
}

extern "C" int mk_host_run(void* launch, mk::HostResult* result) {
  const std::unique_ptr<mk::Launch> own(static_cast<mk::Launch*>(launch));
  return own->run(*result);
}

extern "C" void mk_host_discard(void* launch) { delete static_cast<mk::Launch*>(launch); }

extern "C" const char* mk_host_error() { return mk::last_error.c_str(); }
