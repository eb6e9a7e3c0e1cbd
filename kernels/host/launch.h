// A launch on threads: what it needs of the parameters of any kernel, and what it says when it is over.
#pragma once
#include "../mk/params.h"

namespace mk {

// Times of CLOCK_MONOTONIC: the gate opens, the last block leaves. Then the abort record, field by field.
#define MK_HOST_RESULT(S, A) \
  S(u64, start_ns)           \
  S(u64, end_ns)             \
  MK_ABORT_RECORD(S, A)
MK_STRUCT(HostResult, MK_HOST_RESULT)

}  // namespace mk

extern "C" {

// Creates one thread a block, parked at a gate. `params` (a kernel's Params, which start with LaunchParams) must stay
// where it is until the launch is over. Null: threads could not be had; mk_host_error() says why.
void* mk_host_prepare(const void* params);

// Opens the gate, waits for all blocks, frees the launch. 0: all left normally; 1: the launch was given up.
int mk_host_run(void* launch, mk::HostResult* result);

// Frees a launch that is not to be run.
void mk_host_discard(void* launch);

// Why the last mk_host_prepare of this thread failed.
const char* mk_host_error();
}
