#include "lathe/data/metrics/calibration.h"

#include <cmath>

namespace lathe {

void Calibration::Add(double confidence, bool correct) {
  int bin = 0;
  while (bin + 1 < kNumBins && confidence > EndOf(bin)) ++bin;
  CalibrationBin& samples = bins_[static_cast<size_t>(bin)];
  ++samples.count;
  samples.correct += correct;
  samples.confidence_sum += confidence;
}

std::optional<double> Calibration::Error() const {
  double gaps = 0;
  int64_t count = 0;
  for (const CalibrationBin& bin : bins_) {
    gaps += std::abs(static_cast<double>(bin.correct) - bin.confidence_sum);
    count += bin.count;
  }
  if (count == 0) return std::nullopt;
  return gaps / static_cast<double>(count);
}

}  // namespace lathe
