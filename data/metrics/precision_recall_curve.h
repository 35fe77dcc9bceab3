// Precision and recall of a label at every threshold of its score.
//
//   const auto curve = MakePrecisionRecallCurve(RankLevels(scores, positives));
//   if (curve) ... curve->precision[i], curve->recall[i]
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "lathe/data/metrics/ranking.h"

namespace lathe {

// The points are those of scikit-learn's precision_recall_curve, in its order: thresholds rise. A
// sample is predicted to have the label if its score is at least the threshold. The last point has
// precision 1 and recall 0, and no threshold.
struct PrecisionRecallCurve {
  std::vector<double> precision, recall;  // [m + 1]
  std::vector<double> thresholds;         // [m]
};

// Returns the curve, or nullopt without positive samples: recall is then undefined, where
// scikit-learn has 1. A curve of more than `most_points` points keeps so many at most, both ends
// among them. They lie at about even distances along the curve: two points are as far apart as
// their precisions plus their recalls. Throws unless `most_points` > 1.
std::optional<PrecisionRecallCurve> MakePrecisionRecallCurve(std::span<const RankLevel> levels,
                                                             size_t most_points = 100);

}  // namespace lathe
