// Discrete events over fibers: the fiber with the smallest virtual time runs, until it meets a point where another one is
// due earlier. A run is a pure function of what it is given.
#pragma once
#include <queue>
#include <random>
#include <vector>

#include "../mk/types.h"
#include "fiber.h"

namespace mk {

using Picoseconds = u64;

struct Task {
  Fiber fiber;
  Picoseconds time = 0;
  u32 id = 0;
  bool parked = false;
  Task* next_waiter = nullptr;
};

// Tasks that wait for the same thing.
struct Waiters {
  Task* first = nullptr;
};

class Scheduler {
 public:
  void configure(bool stress, u64 seed) {
    stress_ = stress;
    random_.seed(seed);
  }
  void add(Task& task) {
    task.id = u32(tasks_++);
    push(task);
  }

  // Runs until nothing is runnable or stop() was called.
  void run();
  void stop() { stopped_ = true; }
  bool stopped() const { return stopped_; }

  Task& current() { return *current_; }
  u64 events() const { return events_; }

  // By the running task. Returns when no other task is due before it.
  void arrive();
  // Gives up the processor until wake().
  void park(Waiters& waiters);
  // Every waiter becomes runnable at `time`, or at its own time if that is later.
  void wake(Waiters& waiters, Picoseconds time);
  // Leaves for good.
  [[noreturn]] void finish();

 private:
  struct Event {
    u64 key;
    u32 id;
    Task* task;
    bool operator<(const Event& other) const { return key != other.key ? key > other.key : id > other.id; }
  };

  void push(Task& task);
  void leave(Task& from);
  Task* pop();

  std::priority_queue<Event> queue_;
  std::mt19937_64 random_;
  Task main_;
  Task* current_ = nullptr;
  u64 tasks_ = 0, events_ = 0;
  bool stress_ = false, stopped_ = false;
};

}  // namespace mk
