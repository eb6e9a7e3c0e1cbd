// The one place that knows which platform this is. Everything above it is written for a Block.
#pragma once
#include "params.h"

namespace mk {

enum class Scope { gpu, system };                        // who must see it: the own GPU; peers, host and network
enum class Order { relaxed, acquire, release, acq_rel };

}  // namespace mk

#ifdef __CUDACC__
#include "platform_cuda.h"
#else
#include "platform_cpu.h"
#endif
