// How a thread waits for another: short waits stay on the core, longer ones give it away, long ones sleep. A rank has
// more blocks than cores, so a thread that only spins keeps the one it waits for from running.
#pragma once
#include <sched.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "../mk/types.h"

namespace mk {

constexpr u64 kPauses = 64;
constexpr u64 kYields = 4096;
constexpr long kSleepNs = 50'000;

inline void cpu_pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // `yield` does nothing on most cores
#endif
}

// One wait, longer with the number of those before it.
inline void back_off(u64& attempts) {
  const u64 attempt = attempts++;
  if (attempt < kPauses) {
    cpu_pause();
  } else if (attempt < kPauses + kYields) {
    sched_yield();
  } else {
    const timespec pause{0, kSleepNs};
    nanosleep(&pause, nullptr);
  }
}

inline u64 monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return u64(now.tv_sec) * 1'000'000'000 + u64(now.tv_nsec);
}

}  // namespace mk
