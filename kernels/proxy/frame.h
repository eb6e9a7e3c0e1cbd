// What precedes every payload on a TCP connection. A peer is authenticated before, but a torn or crossed stream must
// not write into the heap: every field is checked, and the check word covers them all.
#pragma once
#include <bit>

#include "put.h"

namespace mk {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

enum class FrameKind : u32 { put = 0x5450'4b4d, leave = 0x564c'4b4d };

struct FrameHeader {
  u32 kind;
  i32 sender;  // node
  u64 destination_offset;
  u64 bytes;
  u64 flag_index;
  u64 flag_value;
  u64 check;
};
static_assert(sizeof(FrameHeader) == 48);

// Mixes every bit of every field into the sum (the finaliser of splitmix64); meant for accidents, not for attackers.
constexpr u64 frame_check(const FrameHeader& h) {
  u64 sum = 0x6d6b'6265'6e63'6801;
  for (u64 word : {u64(h.kind) << 32 | u32(h.sender), h.destination_offset, h.bytes, h.flag_index, h.flag_value}) {
    sum = (sum ^ word) + 0x9e37'79b9'7f4a'7c15;
    sum = (sum ^ sum >> 30) * 0xbf58'476d'1ce4'e5b9;
    sum = (sum ^ sum >> 27) * 0x94d0'49bb'1331'11eb;
    sum ^= sum >> 31;
  }
  return sum;
}

constexpr FrameHeader make_frame(FrameKind kind, i32 sender, const Put& put) {
  FrameHeader h{u32(kind), sender, put.destination_offset, put.bytes, put.flag_index, put.flag_value, 0};
  h.check = frame_check(h);
  return h;
}

// Null, or why this header is not one that `peer` can have sent.
inline const char* frame_refusal(const FrameHeader& h, i32 peer, const Bounds& bounds) {
  if (h.kind != u32(FrameKind::put) && h.kind != u32(FrameKind::leave)) return "corrupt stream: not a frame";
  if (h.check != frame_check(h)) return "corrupt stream: wrong check word";
  if (h.sender != peer) return "the frame is from another node";
  if (h.kind == u32(FrameKind::leave)) return h.bytes == 0 ? nullptr : "a farewell with a payload";
  return bounds.refusal(h.destination_offset, h.bytes, h.flag_index);
}

}  // namespace mk
