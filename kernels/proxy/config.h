// What a host proxy is started with and what it says when it stops.
#pragma once
#include "../mk/layout.h"

namespace mk {

// Order of the names: their numbers.
#define MK_TRANSPORTS(F) F(shm) F(tcp)
enum class TransportKind : i32 { shm = 0, tcp = 1 };

// Addresses are u64. A flag word lies at control_offset + 8 * index in what the kernel of every rank uses: the heap, or the
// GPU memory.
#define MK_PROXY_CONFIG(S, A)                                                                          \
  S(u64, heap)                                                                                         \
  S(u64, heap_bytes)                                                                                   \
  S(u64, control_offset)                                                                               \
  S(u64, flag_words)            /* what a command may set; no payload may touch them */                \
  S(u64, ring_slots)            /* as in the launch's parameters; zero before the first command */     \
  S(u64, ring_tails)                                                                                   \
  S(u64, epoch_word)            /* address of a u64 that holds the epoch of the launch in progress */  \
  S(u64, abort_record)                                                                                 \
  A(u64, peer_heaps, kMaxNodes) /* shm: the rail peer's heap of each node, as mapped here */           \
  S(u64, context)               /* CUcontext of the memory below; 0: the kernel uses the heap itself */ \
  S(u64, gpu_memory)            /* what the kernel uses; payload passes through the heap on its way */ \
  A(u64, peer_gpu_memory, kMaxNodes) /* shm: that of each rail peer, as mapped here */                 \
  S(u64, pace_fs_per_byte)      /* femtoseconds that the link to the network takes a byte; 0: at once */ \
  A(i32, fds, kMaxNodes)        /* tcp: connected, authenticated; stay the caller's to close */        \
  S(i32, transport)             /* TransportKind */                                                    \
  S(i32, rings)                                                                                        \
  S(i32, ring_depth)            /* power of two */                                                     \
  S(i32, node)                                                                                         \
  S(i32, nodes)                                                                                        \
  S(i32, rank)                  /* named in the abort record */
MK_STRUCT(ProxyConfig, MK_PROXY_CONFIG)

#define MK_PROXY_STATS(S, A)                                                      \
  S(u64, commands)       /* taken from the rings */                               \
  S(u64, puts)           /* accepted by the transport */                          \
  S(u64, payload_bytes)  /* of those puts: data, without flags and headers */     \
  S(u64, received_bytes) /* payload that arrived; 0 with shm, where nobody sees */ \
  S(u64, refused)        /* posts that the transport had no room for */           \
  S(u32, failed)         /* 1: mk_proxy_error() says why */                       \
  S(u32, reserved)
MK_STRUCT(ProxyStats, MK_PROXY_STATS)

}  // namespace mk
