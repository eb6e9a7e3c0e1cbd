// The simulated network's end at one rank. It carries a put to the simulator's links and lands it once its time has come;
// the copies are done here, where ThreadSanitizer watches them like those of a real transport.
#pragma once
#include <cstring>

#include "../sim/simulation.h"
#include "put.h"

namespace mk {

class SimTransport {
 public:
  SimTransport(Simulation& simulation, Rank& rank) : simulation_(simulation), rank_(rank) {}

  bool post(const Put& put) {
    post_to_wire(simulation_, rank_, put.peer,
                 {0, rank_.index, put.source_offset, put.destination_offset, put.bytes, put.flag_index, put.flag_value, {}});
    return true;
  }

  bool progress() { return false; }  // what is on the wire lands by itself
  const char* error() const { return nullptr; }

 private:
  Simulation& simulation_;
  Rank& rank_;
};

}  // namespace mk
