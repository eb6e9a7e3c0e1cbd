#include "fiber.h"

#include <cstdint>

#ifdef MK_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace mk {

namespace {

// makecontext passes ints only.
void start(unsigned entry_high, unsigned entry_low, unsigned argument_high, unsigned argument_low) {
  const auto join = [](unsigned high, unsigned low) { return std::uintptr_t(high) << 32 | low; };
  reinterpret_cast<void (*)(void*)>(join(entry_high, entry_low))(reinterpret_cast<void*>(join(argument_high, argument_low)));
}

}  // namespace

Fiber::~Fiber() {
#ifdef MK_TSAN
  if (owns_sanitizer_) __tsan_destroy_fiber(sanitizer_);
#endif
}

void Fiber::create(void* stack, size_t bytes, void (*entry)(void*), void* argument) {
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = bytes;
  context_.uc_link = nullptr;
  const auto e = reinterpret_cast<std::uintptr_t>(entry), a = reinterpret_cast<std::uintptr_t>(argument);
  makecontext(&context_, reinterpret_cast<void (*)()>(start), 4, unsigned(e >> 32), unsigned(e), unsigned(a >> 32), unsigned(a));
#ifdef MK_TSAN
  sanitizer_ = __tsan_create_fiber(0);
  owns_sanitizer_ = true;
#endif
}

void Fiber::adopt_thread() {
  started_ = true;
#ifdef MK_TSAN
  sanitizer_ = __tsan_get_current_fiber();
#endif
}

void Fiber::switch_between(Fiber& from, Fiber& to) {
#ifdef MK_TSAN
  __tsan_switch_to_fiber(to.sanitizer_, __tsan_switch_to_fiber_no_sync);
  to.started_ = true;
  swapcontext(&from.context_, &to.context_);
#else
  // setcontext saves the signal mask with a system call each time; it is only needed to enter a new stack.
  if (_setjmp(from.point_)) return;
  if (to.started_) _longjmp(to.point_, 1);
  to.started_ = true;
  setcontext(&to.context_);
#endif
}

void ordered_before([[maybe_unused]] void* object) {
#ifdef MK_TSAN
  __tsan_release(object);
#endif
}

void ordered_after([[maybe_unused]] void* object) {
#ifdef MK_TSAN
  __tsan_acquire(object);
#endif
}

}  // namespace mk
