// Whether a classifier's confidence tells how often it is right: Guo et al., "On Calibration of
// Modern Neural Networks" (2017), section 2.
//
//   Calibration calibration;
//   for (...) calibration.Add(confidence, is_right);
//   std::optional<double> error = calibration.Error();
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace lathe {

// The samples whose confidence is above (m - 1) / 15 and at most m / 15.
struct CalibrationBin {
  int64_t count = 0, correct = 0;
  double confidence_sum = 0;
};

class Calibration {
 public:
  static constexpr int kNumBins = 15;

  // `confidence` is the probability of what was predicted, in [0, 1].
  void Add(double confidence, bool correct);

  // Returns the expected calibration error (equation 3): the mean over samples of |accuracy - mean
  // confidence| of their bins. Undefined without samples.
  std::optional<double> Error() const;
  const std::array<CalibrationBin, kNumBins>& bins() const { return bins_; }
  // Returns the end of bin m (from 0), which belongs to it.
  static double EndOf(int bin) { return bin + 1 == kNumBins ? 1.0 : (bin + 1) * (1.0 / kNumBins); }

 private:
  std::array<CalibrationBin, kNumBins> bins_{};
};

}  // namespace lathe
