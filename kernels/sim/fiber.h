// A stack of its own and a switch. Switches carry no happens-before for ThreadSanitizer, so that an order missing in the
// kernel is a race to it although everything runs on one thread.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>

namespace mk {

class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();

  // `entry(argument)` must not return; it ends with a last switch away.
  void create(void* stack, size_t bytes, void (*entry)(void*), void* argument);
  // The thread that runs the scheduler, so that fibers can switch back to it.
  void adopt_thread();

  static void switch_between(Fiber& from, Fiber& to);

 private:
  ucontext_t context_;
  jmp_buf point_;
  bool started_ = false;
  void* sanitizer_ = nullptr;
  bool owns_sanitizer_ = false;
};

// Order that the platform gives, not the kernel: stream order between launches, a NIC that reads what was posted.
void ordered_before(void* object);
void ordered_after(void* object);

}  // namespace mk
