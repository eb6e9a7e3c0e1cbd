// One TCP connection to a rail peer: frames out of the own heap, frames into the own heap. Never blocks.
//
// A Landing has
//   const Bounds bounds
//   bool has_room() const   what arrives can be taken
//   void land(const Put&)   the payload is in the heap: have the kernel see it, then its flag
#pragma once
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "error_text.h"
#include "frame.h"

namespace mk {

template <class Landing> class Connection {
 public:
  // Few frames fill a socket's buffer, and what waits here is not yet lost if the batch behind it has to wait.
  static constexpr i32 kQueue = 32;

  void open(int fd, i32 node, i32 peer, u8* heap) {
    fd_ = fd;
    node_ = node;
    peer_ = peer;
    heap_ = heap;
  }

  bool is_open() const { return fd_ >= 0; }
  bool idle() const { return queued_ == 0; }
  u64 received_bytes() const { return received_bytes_; }

  bool post(const Put& put, ErrorText& error) {
    if (!is_open() || left_) {
      error.set(put, "send", left_ ? "the peer has left" : "there is no connection");
      return false;
    }
    if (queued_ == kQueue) return false;
    Outgoing& out = queue_[(first_ + queued_++) % kQueue];
    out = {make_frame(FrameKind::put, node_, put), put, 0};
    return true;
  }

  bool progress(Landing& landing, ErrorText& error) {
    if (!is_open()) return false;
    const bool sent = send(error);
    const bool received = receive(landing, error);
    return sent || received;
  }

  // Only at a frame's border, else the peer would take it for payload.
  void leave() {
    if (!is_open() || left_ || queued_ > 0) return;
    const FrameHeader h = make_frame(FrameKind::leave, node_, {});
    // If even this does not fit, the peer sees a connection that closes without a farewell.
    [[maybe_unused]] const ssize_t n = ::send(fd_, &h, sizeof h, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

 private:
  static constexpr i32 kBatch = 8;   // frames in one write
  static constexpr i32 kReads = 16;  // in one step, so that a busy peer leaves time to the others

  struct Outgoing {
    FrameHeader header;
    Put put;
    u64 sent;  // bytes of header and payload
  };

  static bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

  bool send(ErrorText& error) {
    if (queued_ == 0) return false;
    iovec parts[2 * kBatch];
    msghdr message{};
    message.msg_iov = parts;
    for (i32 i = 0; i < queued_ && i < kBatch; ++i) {
      Outgoing& out = queue_[(first_ + i) % kQueue];
      const u64 from_header = out.sent < sizeof out.header ? sizeof out.header - out.sent : 0;
      const u64 payload_sent = from_header ? 0 : out.sent - sizeof out.header;
      if (from_header)
        parts[message.msg_iovlen++] = {reinterpret_cast<u8*>(&out.header) + out.sent, from_header};
      if (out.put.bytes > payload_sent)
        parts[message.msg_iovlen++] = {heap_ + out.put.source_offset + payload_sent, out.put.bytes - payload_sent};
    }
    const ssize_t n = ::sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
      if (!would_block()) error.set(queue_[first_].put, "send", std::strerror(errno));
      return false;
    }
    complete(u64(n));
    return n > 0;
  }

  void complete(u64 bytes) {
    while (bytes > 0) {
      Outgoing& out = queue_[first_];
      const u64 left = sizeof out.header + out.put.bytes - out.sent;
      const u64 part = bytes < left ? bytes : left;
      out.sent += part;
      bytes -= part;
      if (part < left) return;
      first_ = (first_ + 1) % kQueue;
      --queued_;
    }
  }

  bool receive(Landing& landing, ErrorText& error) {
    bool moved = false;
    for (i32 i = 0; i < kReads && !left_ && landing.has_room(); ++i) {
      // One call gets the rest of a payload, in place, and the header behind it.
      iovec parts[2];
      msghdr message{};
      message.msg_iov = parts;
      if (payload_left_ > 0) parts[message.msg_iovlen++] = {heap_ + payload_at_, payload_left_};
      u8* header = reinterpret_cast<u8*>(&header_in_);
      parts[message.msg_iovlen++] = {header + header_bytes_, sizeof header_in_ - header_bytes_};
      const ssize_t n = ::recvmsg(fd_, &message, MSG_DONTWAIT);
      if (n < 0 && would_block()) return moved;
      if (n <= 0) {
        lost(n == 0 ? "it closed the connection" : std::strerror(errno), error);
        return moved;
      }
      moved = true;
      if (!arrived(u64(n), landing, error)) return moved;
    }
    return moved;
  }

  void lost(const char* reason, ErrorText& error) {
    if (payload_left_ > 0) error.set(incoming_, "receive", reason);
    else if (header_bytes_ > 0) error.set("peer node %d: in the header of a frame: %s", peer_, reason);
    else if (queued_ > 0) error.set(queue_[first_].put, "send", reason);
    else error.set("peer node %d: no command under way: %s", peer_, reason);
  }

  bool arrived(u64 bytes, Landing& landing, ErrorText& error) {
    if (payload_left_ > 0) {
      const u64 part = bytes < payload_left_ ? bytes : payload_left_;
      payload_at_ += part;
      payload_left_ -= part;
      received_bytes_ += part;
      bytes -= part;
      if (payload_left_ > 0) return true;
      landing.land(incoming_);
    }
    header_bytes_ += bytes;
    if (header_bytes_ < sizeof header_in_) return true;
    header_bytes_ = 0;
    const FrameHeader& h = header_in_;
    incoming_ = {peer_, 0, h.destination_offset, h.bytes, h.flag_index, h.flag_value};
    if (const char* reason = frame_refusal(h, peer_, landing.bounds)) {
      error.set(incoming_, "receive", reason);
      return false;
    }
    if (h.kind == u32(FrameKind::leave)) {
      left_ = true;
      return true;
    }
    payload_at_ = h.destination_offset;
    payload_left_ = h.bytes;
    if (h.bytes == 0) landing.land(incoming_);
    return true;
  }

  int fd_ = -1;
  i32 node_ = 0, peer_ = 0;
  u8* heap_ = nullptr;
  bool left_ = false;  // the peer said so; nothing follows

  Outgoing queue_[kQueue];
  i32 first_ = 0, queued_ = 0;

  FrameHeader header_in_;
  u64 header_bytes_ = 0;
  Put incoming_ = {};
  u64 payload_at_ = 0, payload_left_ = 0;
  u64 received_bytes_ = 0;
};

}  // namespace mk
