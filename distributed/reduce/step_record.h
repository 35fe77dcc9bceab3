// The record that each rank adds to an exchange of gradients.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lathe {

// Numbers arrive as they were sent, also a NaN or an infinity. So the loss sum tells if this rank's
// part of the loss is finite.
struct StepRecord {
  double loss_sum = 0, weight = 0;  // these two with 48 bits
  bool stop = false;                // somebody has asked this rank to stop
  int64_t step = 0;                 // its step, below 2^24
  uint64_t checksum = 0;            // 48 bits
  double own_seconds = 0;           // of the step in which it didn't wait for others, at least 0
};

// Pack a record as floats that a sum with zeros leaves as they are, and unpack it.
constexpr size_t kStepRecordFloats = 8;
std::array<float, kStepRecordFloats> Pack(const StepRecord& record);
StepRecord Unpack(const float* floats);

}  // namespace lathe
