// The record that each rank adds to an exchange of gradients.
#pragma once

#include <array>
#include <cmath>
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
inline std::array<float, kStepRecordFloats> Pack(const StepRecord& record) {
  constexpr uint64_t kLow = (1 << 24) - 1;
  const float high = static_cast<float>(record.loss_sum);
  const bool split = std::isfinite(high);  // Inf - Inf is NaN
  const float weight = static_cast<float>(record.weight);
  return {high,
          split ? static_cast<float>(record.loss_sum - static_cast<double>(high)) : 0,
          weight,
          static_cast<float>(record.stop ? -1 - record.own_seconds : 1 + record.own_seconds),
          static_cast<float>(record.step),
          static_cast<float>(record.checksum & kLow),
          static_cast<float>(record.checksum >> 24 & kLow),
          static_cast<float>(record.weight - static_cast<double>(weight))};
}

inline StepRecord Unpack(const float* floats) {
  StepRecord record;
  record.loss_sum = static_cast<double>(floats[0]) + static_cast<double>(floats[1]);
  record.weight = static_cast<double>(floats[2]) + static_cast<double>(floats[7]);
  record.stop = floats[3] < 0;
  record.own_seconds = std::abs(static_cast<double>(floats[3])) - 1;
  record.step = static_cast<int64_t>(floats[4]);
  record.checksum = static_cast<uint64_t>(floats[5]) | static_cast<uint64_t>(floats[6]) << 24;
  return record;
}

}  // namespace lathe
