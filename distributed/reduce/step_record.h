// What each rank adds to an exchange of gradients.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lathe {

// Numbers arrive as they left, and so do a NaN and an infinity: the loss sum says whether this
// rank's part of the loss is finite.
struct StepRecord {
  double loss_sum = 0, weight = 0;  // to float's precision, and up to 2^24
  bool stop = false;                // somebody has asked this rank to
  int64_t step = 0;                 // of it, below 2^24
  uint64_t checksum = 0;            // 48 bits
};

// A record as floats that a sum with zeros leaves as they are, and back.
constexpr size_t kStepRecordFloats = 8;
std::array<float, kStepRecordFloats> Pack(const StepRecord& record);
StepRecord Unpack(const float* floats);

}  // namespace lathe
