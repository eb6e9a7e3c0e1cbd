// What a simulation is told and what it reports. Rates are per nanosecond, so 1 GB/s is 1.
#pragma once
#include "../mk/layout.h"

namespace mk {

#define MK_SIM_CONFIG(S, A)                                                                       \
  S(u64, seed)                                                                                    \
  S(u64, heap_bytes)          /* of one rank */                                                   \
  S(u64, control_end)         /* the heap's first bytes: words that others see */                 \
  S(u64, kept_end)            /* metadata up to here: always real, like control words */          \
  S(u64, network_offset)      /* the network region, at the heap's end */                         \
  S(u64, network_control)     /* its first bytes, likewise */                                     \
  S(u64, network_kept)        /* metadata up to here; all the rest is payload */                  \
  S(u64, time_limit_ns)                                                                           \
  S(double, gemm_flops)       /* of one SM, a nanosecond */                                       \
  S(double, tile_overhead_ns)                                                                     \
  S(double, kernel_start_ns)                                                                      \
  S(double, copy_bytes)       /* of one SM: bytes read and written again, a nanosecond */         \
  S(double, hbm_bytes)                                                                            \
  S(double, nvlink_bytes)     /* of one GPU, each direction */                                    \
  S(double, nvlink_latency_ns)                                                                    \
  S(double, flag_gpu_ns)      /* a release, until a reader can see it */                          \
  S(double, flag_system_ns)                                                                       \
  S(double, poll_ns)          /* one look at a word */                                            \
  S(double, role_switch_ns)                                                                       \
  S(double, proxy_command_ns)                                                                     \
  S(double, network_bytes)    /* of one GPU, each direction */                                    \
  S(double, network_latency_ns)                                                                   \
  S(double, network_message_ns)                                                                   \
  S(double, jitter)           /* relative spread of each cost */                                  \
  S(double, slow_from_ns)     /* from then on the network runs at 1 / slow_factor */              \
  S(double, slow_factor)                                                                          \
  S(i32, launches)            /* back to back, each with the next epoch */                        \
  S(i32, payload)             /* 0: data is elided */                                             \
  S(i32, stress)              /* 1: random order instead of the order of time */                  \
  S(i32, reserved)
MK_STRUCT(SimConfig, MK_SIM_CONFIG)

enum class SimStatus : u32 { ok = 0, deadlock = 1, protocol_error = 2, time_limit = 3 };

#define MK_SIM_RESULT(S, A) \
  S(u64, events)            \
  S(u64, payload_bytes)     \
  S(u64, commands)          \
  S(u32, status)            \
  S(u32, reserved)
MK_STRUCT(SimResult, MK_SIM_RESULT)

}  // namespace mk
