// What a block on the CPU needs from whatever runs it: threads of the host platform, or fibers of the simulator.
#pragma once
#include "params.h"

namespace mk {

enum class Scope;
enum class Order;
struct Block;

// A word that a block waits for, as reports name it.
struct Awaited {
  const u64* word;
  u64 expected;
  u64 seen;
  u32 role;
  u32 flag;
  u32 index;
};

// Bytes that one task moves: every source is read once, every destination written once or, if it `adds`, added to.
struct Traffic {
  const void* source[64];
  void* destination[kMaxNodeRanks + 1];  // all ranks of the node, and what the network reads
  i32 sources = 0;
  i32 destinations = 0;
  i64 bytes = 0;  // of one source, and of one destination
  bool adds = false;
};

struct Machine {
  bool payload = true;  // false: data is elided, flags and counters are not
  virtual ~Machine() = default;
  virtual u64 now_ns(Block&) = 0;
  // Called before each access to words that others can see: the simulator charges it and lets earlier events go first.
  virtual void before_access(Block&, const u64* words, i32 count, Scope, bool writes) = 0;
  virtual void after_write(Block&, const u64* word, Scope) = 0;
  // Returns once it is worth looking again, or false when the wait is to be given up.
  virtual bool idle(Block&, const Awaited&, u64& attempts) = 0;
  virtual bool aborted(Block&) = 0;
  virtual void rest(Block&) = 0;  // before another look at several words
  virtual void charge_gemm(Block&, i32 k, i32 task) = 0;
  virtual void charge_attention(Block&, i32 keys, i32 d, i32 task) = 0;  // of kTileM queries, both products
  virtual void charge_store(Block&, i64 bytes) = 0;  // the wait until an asynchronous store is complete
  virtual void charge_move(Block&, const Traffic&) = 0;
  virtual void charge_pass(Block&, i64 bytes) = 0;  // over words, by all threads of the block
  virtual void charge_role_switch(Block&) = 0;
};

}  // namespace mk
