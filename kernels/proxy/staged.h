// A network region in GPU memory. At every offset, pinned host memory stands in for it where the wire ends.
#pragma once
#include <utility>

#include "copy_engine.h"

namespace mk {

// Puts in order: those that wait for a step of a copy engine, then those whose step is under way. A copy costs the driver
// microseconds whatever its size, so what has piled up behind the steps under way becomes one where it is contiguous.
class StagedPuts {
 public:
  bool is_empty() const { return first_ == end_; }
  bool is_full() const { return end_ - first_ > kDepth - 2; }  // one read of a socket may end two puts

  void push(const Put& put) { at(end_++).put = put; }

  // A Step has
  //   bool begin(const Put& run)   room for one more, and the run's payload is being copied
  //   bool add(const Put& put)     for each put of the run
  //   u64 end()                    how many steps there are now, this one counted; 0: failed
  template <class Step> void start(Step& step) {
    while (started_ != end_) {
      Put run = at(started_).put;
      u64 next = started_ + 1;
      for (; next != end_ && continues(run, at(next).put); ++next) run.bytes += at(next).put.bytes;
      if (!step.begin(run)) return;
      for (u64 i = started_; i != next; ++i)
        if (!step.add(at(i).put)) return;
      const u64 count = step.end();
      if (count == 0) return;
      for (; started_ != next; ++started_) at(started_).step = count;
    }
  }

  // `deliver(put)` takes a put of the first `finished` steps, or returns false to be asked again.
  template <class Deliver> bool finish(u64 finished, Deliver deliver) {
    const u64 before = first_;
    while (first_ != started_ && at(first_).step <= finished && deliver(std::as_const(at(first_).put))) ++first_;
    return first_ != before;
  }

 private:
  static constexpr u64 kDepth = 128;
  static constexpr u64 kLongestRun = 1 << 22;  // bytes: longer ones keep one direction of the link idle
  struct Waiting {
    Put put;
    u64 step;
  };

  static bool continues(const Put& run, const Put& put) {
    return put.peer == run.peer && put.bytes > 0 && run.bytes > 0 && run.bytes + put.bytes <= kLongestRun &&
           put.source_offset == run.source_offset + run.bytes &&
           put.destination_offset == run.destination_offset + run.bytes;
  }
  Waiting& at(u64 i) { return waiting_[i % kDepth]; }

  Waiting waiting_[kDepth];
  u64 first_ = 0, started_ = 0, end_ = 0;
};

// From the own GPU memory to the host memory that the wire reads.
class Departure {
 public:
  Departure(const ProxyConfig& config, CopyEngine& engine) : config_(config), engine_(engine) {}

  bool begin(const Put& run) {
    return !engine_.is_full(kLane) &&
           engine_.copy(kLane, heap_at(config_.heap) + run.source_offset, heap_at(config_.gpu_memory) + run.source_offset,
                        run.bytes);
  }
  bool add(const Put&) { return true; }
  u64 end() { return engine_.end_step(kLane); }

 private:
  static constexpr auto kLane = CopyEngine::from_gpu;
  const ProxyConfig& config_;
  CopyEngine& engine_;
};

// From the host memory that the wire wrote to the own GPU memory.
class Arrival {
 public:
  Arrival(const ProxyConfig& config, CopyEngine& engine) : config_(config), bounds_(config), engine_(engine) {}

  bool begin(const Put& run) {
    return !engine_.is_full(kLane) &&
           engine_.copy(kLane, heap_at(config_.gpu_memory) + run.destination_offset,
                        heap_at(config_.heap) + run.destination_offset, run.bytes);
  }
  bool add(const Put& put) {
    return engine_.write(kLane, bounds_.flag(heap_at(config_.gpu_memory), put.flag_index), put.flag_value);
  }
  u64 end() { return engine_.end_step(kLane); }

 private:
  static constexpr auto kLane = CopyEngine::to_gpu;
  const ProxyConfig& config_;
  const Bounds bounds_;
  CopyEngine& engine_;
};

// From the own GPU memory, through the own host memory as it would go to a NIC, to the peer's GPU memory.
class Crossing {
 public:
  Crossing(const ProxyConfig& config, CopyEngine& engine) : config_(config), bounds_(config), engine_(engine) {}

  bool begin(const Put& run) {
    // A step to a GPU ends after the one from a GPU that it waits for, so room for it is room for both.
    if (engine_.is_full(CopyEngine::to_gpu)) return false;
    u8* host = heap_at(config_.heap) + run.source_offset;
    if (run.bytes == 0) return true;  // a flag alone waits for no copy from the GPU but that of earlier puts
    return engine_.copy(CopyEngine::from_gpu, host, heap_at(config_.gpu_memory) + run.source_offset, run.bytes) &&
           engine_.end_step(CopyEngine::from_gpu) && engine_.order_after_last_from_gpu() &&
           engine_.copy(CopyEngine::to_gpu, heap_at(config_.peer_gpu_memory[run.peer]) + run.destination_offset, host,
                        run.bytes);
  }
  bool add(const Put& put) {
    return engine_.write(CopyEngine::to_gpu, bounds_.flag(heap_at(config_.peer_gpu_memory[put.peer]), put.flag_index),
                         put.flag_value);
  }
  u64 end() { return engine_.end_step(CopyEngine::to_gpu); }

 private:
  const ProxyConfig& config_;
  const Bounds bounds_;
  CopyEngine& engine_;
};

}  // namespace mk
