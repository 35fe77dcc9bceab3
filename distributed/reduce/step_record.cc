#include "lathe/distributed/reduce/step_record.h"

#include <cmath>

namespace lathe {

std::array<float, kStepRecordFloats> Pack(const StepRecord& record) {
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

StepRecord Unpack(const float* floats) {
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
