// A GPU's copy engines, for proxies whose network region lies in GPU memory: one lane from the GPU, one to it, each in order.
// A flag is written in its lane too, so that it follows its payload with no help of the processor. The driver is loaded
// when it is needed, so that the library builds and runs without CUDA.
#pragma once
#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "error_text.h"

namespace mk {

class CopyEngine {
 public:
  enum Lane : i32 { from_gpu = 0, to_gpu = 1 };
  // Steps under way in a lane: enough to hide the driver's time, few enough that what waits behind them gathers into runs.
  static constexpr u64 kDepth = 4;

  // `context`: the CUcontext that owns the memory. Throws std::runtime_error.
  explicit CopyEngine(u64 context) : context_(reinterpret_cast<void*>(context)) {
    require(driver_.push(context_), "cuCtxPushCurrent");
    for (LaneState& lane : lanes_) {
      require(driver_.create_stream(&lane.stream, kNonBlocking), "cuStreamCreate");
      for (void*& event : lane.events) require(driver_.create_event(&event, kDisableTiming), "cuEventCreate");
    }
    void* popped;
    require(driver_.pop(&popped), "cuCtxPopCurrent");
  }

  // Waits for the copies under way: their memory is freed next.
  ~CopyEngine() {
    driver_.push(context_);
    for (LaneState& lane : lanes_) {
      driver_.synchronize(lane.stream);
      for (void* event : lane.events) driver_.destroy_event(event);
      driver_.destroy_stream(lane.stream);
    }
    void* popped;
    driver_.pop(&popped);
  }
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;

  // By the thread that copies from here on.
  void enter() {
    if (const int code = driver_.set_current(context_)) fail("cuCtxSetCurrent", code);
  }

  bool is_full(Lane lane) const { return lanes_[lane].issued - lanes_[lane].finished == kDepth; }

  // Not when the lane is full. Both ranges stay as they are until the step has ended. False: see error().
  bool copy(Lane lane, const void* to, const void* from, u64 bytes) {
    if (bytes == 0) return true;
    LaneState& state = lanes_[lane];
    const auto t = reinterpret_cast<u64>(to), f = reinterpret_cast<u64>(from);
    const int code = lane == from_gpu ? driver_.copy_from_gpu(t, f, bytes, state.stream)
                                      : driver_.copy_to_gpu(t, f, bytes, state.stream);
    if (code) return fail(lane == from_gpu ? "cuMemcpyDtoHAsync" : "cuMemcpyHtoDAsync", code);
    return true;
  }

  // Once the copies before it are visible to the GPU.
  bool write(Lane lane, u64* word, u64 value) {
    const int code = driver_.write_value(lanes_[lane].stream, reinterpret_cast<u64>(word), value, 0);
    return code == 0 || fail("cuStreamWriteValue64", code);
  }

  // Ends a step of a lane, of copies and writes, and returns how many there were. 0: see error().
  u64 end_step(Lane lane) {
    LaneState& state = lanes_[lane];
    if (const int code = driver_.record(state.events[state.issued % kDepth], state.stream))
      return fail("cuEventRecord", code);
    return ++state.issued;
  }

  // The next step to the GPU begins only after the last one from it.
  bool order_after_last_from_gpu() {
    const LaneState& first = lanes_[from_gpu];
    void* event = first.events[(first.issued - 1) % kDepth];
    const int code = driver_.wait_event(lanes_[to_gpu].stream, event, 0);
    return code == 0 || fail("cuStreamWaitEvent", code);
  }

  // How many steps of a lane have ended; what they wrote is visible to whoever is told so.
  u64 finished(Lane lane) {
    LaneState& state = lanes_[lane];
    while (state.finished < state.issued && !error_.get()) {
      const int code = driver_.query(state.events[state.finished % kDepth]);
      if (code == kNotReady) break;
      if (code) {
        fail("cuEventQuery", code);
        break;
      }
      ++state.finished;
    }
    return state.finished;
  }

  const char* error() const { return error_.get(); }

 private:
  static constexpr u32 kNonBlocking = 1, kDisableTiming = 2;
  static constexpr int kNotReady = 600;

  struct LaneState {
    void* stream = nullptr;
    void* events[kDepth] = {};
    u64 issued = 0, finished = 0;
  };

  // The driver's functions, with its own types replaced by pointers.
  struct Driver {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*push)(void*) = find<int (*)(void*)>("cuCtxPushCurrent_v2");
    int (*pop)(void**) = find<int (*)(void**)>("cuCtxPopCurrent_v2");
    int (*set_current)(void*) = find<int (*)(void*)>("cuCtxSetCurrent");
    int (*create_stream)(void**, u32) = find<int (*)(void**, u32)>("cuStreamCreate");
    int (*destroy_stream)(void*) = find<int (*)(void*)>("cuStreamDestroy_v2");
    int (*synchronize)(void*) = find<int (*)(void*)>("cuStreamSynchronize");
    int (*wait_event)(void*, void*, u32) = find<int (*)(void*, void*, u32)>("cuStreamWaitEvent");
    int (*write_value)(void*, u64, u64, u32) = find<int (*)(void*, u64, u64, u32)>("cuStreamWriteValue64_v2");
    int (*create_event)(void**, u32) = find<int (*)(void**, u32)>("cuEventCreate");
    int (*destroy_event)(void*) = find<int (*)(void*)>("cuEventDestroy_v2");
    int (*record)(void*, void*) = find<int (*)(void*, void*)>("cuEventRecord");
    int (*query)(void*) = find<int (*)(void*)>("cuEventQuery");
    int (*copy_from_gpu)(u64, u64, u64, void*) = find<int (*)(u64, u64, u64, void*)>("cuMemcpyDtoHAsync_v2");
    int (*copy_to_gpu)(u64, u64, u64, void*) = find<int (*)(u64, u64, u64, void*)>("cuMemcpyHtoDAsync_v2");

    template <class Function> Function find(const char* name) const {
      void* symbol = library ? dlsym(library, name) : nullptr;
      if (!symbol) throw std::runtime_error(std::string("the CUDA driver lacks ") + name);
      return reinterpret_cast<Function>(symbol);
    }
  };

  static void require(int code, const char* what) {
    if (code) throw std::runtime_error(std::string(what) + " failed with CUDA error " + std::to_string(code));
  }
  bool fail(const char* what, int code) {
    error_.set("copy engine: %s failed with CUDA error %d", what, code);
    return false;
  }

  Driver driver_;
  void* context_;
  LaneState lanes_[2];
  ErrorText error_;
};

}  // namespace mk
