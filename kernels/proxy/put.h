// What a proxy asks of a transport, and the rules that every put obeys, whether it comes from a block or from the wire.
#pragma once
#include <atomic>

#include "config.h"

namespace mk {

// Copy `bytes` (may be 0) from the own heap to the peer's, then set a flag of the peer with release.
struct Put {
  i32 peer;  // node of the rail peer
  u64 source_offset;
  u64 destination_offset;
  u64 bytes;
  u64 flag_index;
  u64 flag_value;
};

// All heaps are alike, so one set of bounds serves both ends.
struct Bounds {
  u64 heap_bytes, control_offset, flag_words;

  explicit Bounds(const ProxyConfig& c)
      : heap_bytes(c.heap_bytes), control_offset(c.control_offset), flag_words(c.flag_words) {}

  bool holds(u64 offset, u64 bytes) const { return bytes <= heap_bytes && offset <= heap_bytes - bytes; }

  u64* flag(u8* heap, u64 index) const { return reinterpret_cast<u64*>(heap + control_offset) + index; }

  // Null, or why this put must not reach the heap that it is meant for.
  const char* refusal(u64 destination, u64 bytes, u64 flag) const {
    if (flag >= flag_words) return "no such flag";
    if (bytes == 0) return nullptr;
    if (!holds(destination, bytes)) return "the destination is outside the heap";
    const u64 control_end = control_offset + flag_words * sizeof(u64);
    if (destination < control_end && destination + bytes > control_offset) return "the destination overlaps the flags";
    return nullptr;
  }
};

// What the payload's writer did before is visible to whoever acquires the flag.
inline void release_flag(u64& word, u64 value) { std::atomic_ref<u64>(word).store(value, std::memory_order_release); }

inline void set_flag(u8* heap, const Bounds& bounds, u64 index, u64 value) {
  release_flag(*bounds.flag(heap, index), value);
}

inline u8* heap_at(u64 address) { return reinterpret_cast<u8*>(address); }

}  // namespace mk
