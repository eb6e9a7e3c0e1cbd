#include "scheduler.h"

namespace mk {

void Scheduler::push(Task& task) { queue_.push({stress_ ? random_() : task.time, task.id, &task}); }

Task* Scheduler::pop() {
  if (queue_.empty() || stopped_) return nullptr;
  Task* task = queue_.top().task;
  queue_.pop();
  return task;
}

void Scheduler::leave(Task& from) {
  Task* next = pop();
  if (next == &from) return;
  current_ = next ? next : &main_;
  Fiber::switch_between(from.fiber, current_->fiber);
}

void Scheduler::run() {
  main_.fiber.adopt_thread();
  stopped_ = false;
  leave(main_);
}

void Scheduler::arrive() {
  ++events_;
  Task& self = *current_;
  if (!stopped_) {
    if (queue_.empty()) return;
    if (!stress_) {
      const Event& top = queue_.top();
      if (top.key > self.time || (top.key == self.time && top.id > self.id)) return;
    }
    push(self);
  }
  leave(self);
}

void Scheduler::park(Waiters& waiters) {
  ++events_;
  Task& self = *current_;
  self.parked = true;
  self.next_waiter = waiters.first;
  waiters.first = &self;
  leave(self);
}

void Scheduler::wake(Waiters& waiters, Picoseconds time) {
  Task* task = waiters.first;
  waiters.first = nullptr;
  while (task) {
    Task* next = task->next_waiter;
    task->parked = false;
    if (task->time < time) task->time = time;
    push(*task);
    task = next;
  }
}

void Scheduler::finish() {
  leave(*current_);
  __builtin_unreachable();
}

}  // namespace mk
