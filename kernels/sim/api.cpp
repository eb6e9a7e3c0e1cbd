// C functions for Python.
#include <new>

#include "../mk/export.h"
#include "simulation.h"

MK_EXPORT_STRUCT(SimConfig, MK_SIM_CONFIG)
MK_EXPORT_STRUCT(SimResult, MK_SIM_RESULT)

extern "C" {

// `params`: one Params for each rank, without addresses. Null: not enough address space.
mk::Simulation* mk_sim_create(const mk::SimConfig* config, const mk::u8* params, mk::u64 params_bytes) {
  try {
    return new mk::Simulation(*config, params, params_bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

mk::u8* mk_sim_heap(mk::Simulation* simulation, mk::i32 rank) { return simulation->heap(rank); }

void mk_sim_run(mk::Simulation* simulation, mk::SimResult* result) { simulation->run(*result); }

double mk_sim_latency_ns(const mk::Simulation* simulation, mk::i32 launch) {
  return double(simulation->latency(launch)) / mk::kPicosPerNano;
}

const char* mk_sim_report(const mk::Simulation* simulation) { return simulation->report().c_str(); }

void mk_sim_destroy(mk::Simulation* simulation) { delete simulation; }

}  // extern "C"
