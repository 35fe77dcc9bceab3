// Computes how long a recorded call takes on machines with links of a given speed.
#pragma once

#include "lathe/distributed/groups/machine_layout.h"
#include "lathe/tests/benchmarks/simulator/recorded_call.h"

namespace lathe::simulator {

// Each machine has one full-duplex link to a switch that slows nothing down and keeps what comes
// too fast for the receiver's link. A link carries the messages that are under way in turns, a
// piece of each. A message begins once its receiver is ready, as Gloo's do.
struct LinkModel {
  double bits_per_second = 10e9;
  // The part of the link's bits that is not headers: 1,448 of 1,514 bytes of a full frame.
  double payload_share = 1448.0 / 1514;
  double latency = 20e-6;            // of a message or of the answer to it, in seconds
  double message_seconds = 5e-6;     // of processor time for a message at each end
  double memory_per_second = 50e9;   // bytes, shared by the ranks of a machine
  double meeting_seconds = 2e-6;     // for which the ranks of a machine wait for each other
  int64_t bytes_of_turn = 64 << 10;  // of a message, before the link turns to the next one
};

// Returns the seconds until all ranks have finished the call, if all begin it together. Throws
// std::logic_error if the ranks wait for each other without end.
double SecondsOf(const RecordedCall& call, const MachineLayout& layout, const LinkModel& model);

}  // namespace lathe::simulator
