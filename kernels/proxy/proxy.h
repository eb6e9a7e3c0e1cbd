// The host proxy: takes commands from the rings of its rank's blocks and has a transport carry them out. The same loop
// runs as a thread beside a GPU or threads, and as a fiber of the simulator: step() never waits, locks or allocates.
//
// A Transport has
//   bool post(const Put&)      take the put; false: no room (try again later) or failed (see error). Puts to one peer
//                              are carried out in their order; a source stays as it is until then.
//   bool progress()            complete what was posted; write what arrived, then set its flag with release.
//                              True: something moved.
//   const char* error() const  null, or one line for good: which peer, which command, why
// and, for a proxy of its own thread (proxy.cpp),
//   void enter()               by that thread, before anything else
//   bool idle() const          nothing taken is still to be carried out at this end
//   void leave()               tell the peers that this end leaves in good order, without waiting
//   u64 received_bytes() const
#pragma once
#include <atomic>

#include "../host/abort.h"
#include "../mk/command_queue.h"
#include "error_text.h"
#include "pace.h"

namespace mk {

template <class Transport> class Proxy {
 public:
  static constexpr i32 kBatch = 8;  // puts per peer in one step

  Proxy(const ProxyConfig& config, Transport& transport)
      : config_(config), bounds_(config), transport_(transport), link_(config.pace_fs_per_byte) {}

  // One round of everything; true if anything moved. After a failure it does nothing any more.
  bool step() {
    if (failed_) return false;
    const bool took = take();
    const bool posted = post();
    const bool moved = transport_.progress();
    if (error()) fail();
    return took || posted || moved;
  }

  const char* error() const { return error_.get() ? error_.get() : transport_.error(); }

  // Every command published so far has left this end. Says nothing about those that are published meanwhile.
  bool drained() const {
    if (waiting_ > 0 || !transport_.idle()) return false;
    for (i32 ring = 0; ring < config_.rings; ++ring) {
      PackedCommand packed;
      if (peek(ring, taken(ring), packed)) return false;
    }
    return true;
  }

  // Commands, puts, payload_bytes and refused; the rest is for who owns the transport.
  const ProxyStats& stats() const { return stats_; }

 private:
  struct Batch {
    Put puts[kBatch];
    u64 leaves_ns[kBatch];  // not posted sooner
    i32 count = 0;
  };

  // A command stays in its ring while its peer's batch is full: then the ring fills up, and the blocks wait.
  bool take() {
    bool moved = false;
    for (i32 i = 0; i < config_.rings; ++i) {
      const i32 ring = (next_ring_ + i) % config_.rings;
      for (i32 n = 0; n < kBatch && take_one(ring); ++n) moved = true;
    }
    next_ring_ = (next_ring_ + 1) % config_.rings;
    return moved;
  }

  bool take_one(i32 ring) {
    const u64 position = taken(ring);
    PackedCommand packed;
    if (!peek(ring, position, packed)) return false;
    const Command command = unpack(packed);
    Put put;
    if (const char* reason = translate(command, put)) {
      error_.set(put, "accept", reason);
      return false;
    }
    Batch& batch = batches_[put.peer];
    if (batch.count == kBatch) return false;
    batch.leaves_ns[batch.count] = link_.reserve(link_.now_ns(), put.bytes);
    batch.puts[batch.count++] = put;
    ++waiting_;
    ++stats_.commands;
    // The slot is free once it is copied out; release keeps the copy before that.
    std::atomic_ref<u64>(tails()[ring]).store(position + 1, std::memory_order_release);
    return true;
  }

  bool peek(i32 ring, u64 position, PackedCommand& packed) const {
    const u64 depth = u64(config_.ring_depth), lap = lap_bit(position, config_.ring_depth);
    u64* slot = reinterpret_cast<u64*>(config_.ring_slots) + 2 * (u64(ring) * depth + position % depth);
    packed.first = std::atomic_ref<u64>(slot[0]).load(std::memory_order_acquire);
    if (packed.first >> 63 != lap) return false;
    // Ordered by the acquire above, and by the tail against who overwrites it; read plainly, so that ThreadSanitizer
    // sees if it is not. The bit is checked all the same, since half a command must never be carried out.
    packed.second = slot[1];
    return packed.second >> 63 == lap;
  }

  // Null, or why this command cannot be carried out.
  const char* translate(const Command& command, Put& put) const {
    // Read after the command was acquired, so not older than it; a command may be from an earlier launch.
    const u64 now = std::atomic_ref<u64>(*reinterpret_cast<u64*>(config_.epoch_word)).load(std::memory_order_acquire);
    const u64 age = (now - command.epoch) & kCommandEpochMask;
    put = {command.peer, u64(command.source), u64(command.destination), u64(command.bytes), command.flag,
           flag_value(now - age, 1)};
    if (command.op != CommandOp::put) return "unknown operation";
    if (command.peer >= config_.nodes || command.peer == config_.node) return "no such peer";
    if (age >= now) return "it is from no launch";
    if (put.bytes > 0 && !bounds_.holds(put.source_offset, put.bytes)) return "the source is outside the heap";
    return bounds_.refusal(put.destination_offset, put.bytes, put.flag_index);
  }

  bool post() {
    bool moved = false;
    const u64 now_ns = link_.now_ns();
    for (i32 peer = 0; waiting_ > 0 && peer < config_.nodes; ++peer) moved |= post_batch(batches_[peer], now_ns);
    return moved;
  }

  bool post_batch(Batch& batch, u64 now_ns) {
    i32 posted = 0;
    for (; posted < batch.count && batch.leaves_ns[posted] <= now_ns; ++posted) {
      if (!transport_.post(batch.puts[posted])) {
        ++stats_.refused;
        break;
      }
      stats_.payload_bytes += batch.puts[posted].bytes;
    }
    stats_.puts += u64(posted);
    waiting_ -= posted;
    for (i32 i = posted; i < batch.count; ++i) {
      batch.puts[i - posted] = batch.puts[i];
      batch.leaves_ns[i - posted] = batch.leaves_ns[i];
    }
    batch.count -= posted;
    return posted > 0;
  }

  // Blocks that wait for what will not come leave through the abort record.
  void fail() {
    failed_ = true;
    auto* record = reinterpret_cast<AbortRecord*>(config_.abort_record);
    if (record && claim_abort(*record, AbortCause::elsewhere)) record->rank = u32(config_.rank);
  }

  u64* tails() const { return reinterpret_cast<u64*>(config_.ring_tails); }
  // The proxy is the only writer of the tails, so they also serve as its own memory.
  u64 taken(i32 ring) const { return std::atomic_ref<u64>(tails()[ring]).load(std::memory_order_relaxed); }

  const ProxyConfig config_;
  const Bounds bounds_;
  Transport& transport_;
  PacedLink link_;
  Batch batches_[kMaxNodes];
  i32 waiting_ = 0;  // puts in batches
  i32 next_ring_ = 0;
  bool failed_ = false;
  ErrorText error_;
  ProxyStats stats_ = {};
};

}  // namespace mk
