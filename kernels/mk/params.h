// What every kernel is launched with. A kernel's own Params starts with these fields.
#pragma once
#include "layout.h"

namespace mk {

enum class Policy : i32 { fixed = 0, adaptive = 1 };

// Addresses are u64, so that one layout serves host and device. Offsets are bytes from the base of a symmetric heap, or
// of the network region, which is part of the heap or in host memory.
#define MK_LAUNCH_PARAMS(S, A)                                                                     \
  A(u64, heap, kMaxNodeRanks) /* heap of each rank of this node, as this rank addresses it */      \
  S(u64, network)             /* address of the own network region: what the host proxy moves */   \
  S(u64, epoch)               /* generation of this launch: 1, 2, ... over one heap */             \
  S(u64, abort_record)        /* AbortRecord in memory that host and device see */                 \
  S(u64, ring_slots)          /* command rings in host memory: rings * ring_depth * 2 words */     \
  S(u64, ring_tails)          /* commands taken by the host proxy, one word a ring, host memory */ \
  S(u64, deadline_ns)         /* longest that one wait may take */                                 \
  S(u64, pace_fs_per_byte)    /* femtoseconds that the NVLink port takes a byte; 0: at once */     \
  S(u64, control_offset)      /* flags and counters */                                             \
  S(u64, history_offset)      /* controller history: history_capacity rows */                      \
  S(u64, trace_offset)        /* trace: trace_capacity events a block; 0 events: off */            \
  S(i32, rank)                                                                                     \
  S(i32, ranks)                                                                                    \
  S(i32, local_rank)                                                                               \
  S(i32, local_ranks)                                                                              \
  S(i32, node)                                                                                     \
  S(i32, nodes)                                                                                    \
  S(i32, blocks)                                                                                   \
  S(i32, policy)              /* Policy */                                                         \
  S(i32, comm_sms)            /* blocks that communicate; what an adaptive run starts with */      \
  S(i32, rings)                                                                                    \
  S(i32, ring_depth)          /* power of two */                                                   \
  S(i32, history_capacity)                                                                         \
  S(i32, trace_capacity)
MK_STRUCT(LaunchParams, MK_LAUNCH_PARAMS)  // the head of every kernel's Params, for code that serves all kernels

// Why a launch was given up: the first wait that passed its deadline, or a fault that the host reported.
#define MK_ABORT_RECORD(S, A) \
  S(u64, expected)            \
  S(u64, seen)                \
  S(u32, set) /* 0 none, 1 a wait passed its deadline, 2 another rank or the proxy gave up */ \
  S(u32, rank)                \
  S(u32, block)               \
  S(u32, role)                \
  S(u32, flag)                \
  S(u32, index)
MK_STRUCT(AbortRecord, MK_ABORT_RECORD)

}  // namespace mk
