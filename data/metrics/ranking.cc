#include "lathe/data/metrics/ranking.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "lathe/core/base/error.h"

namespace lathe {

RankingScores RankScores(std::span<const double> scores, std::span<const uint8_t> positives) {
  Check(scores.size() == positives.size(), "ranking", "expected a score for each of ",
        positives.size(), " samples but got ", scores.size());
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });

  // Counts of samples with a score at or above that of the present group of equal scores.
  double above_positive = 0, above_negative = 0;
  double ordered_pairs = 0, precision_sum = 0;
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    double positive = 0, negative = 0;
    for (; end < order.size() && scores[order[end]] == scores[order[begin]]; ++end)
      ++(positives[order[end]] != 0 ? positive : negative);
    ordered_pairs += negative * (above_positive + positive / 2);
    above_positive += positive;
    above_negative += negative;
    precision_sum += positive * above_positive / (above_positive + above_negative);
  }
  RankingScores result;
  if (above_positive > 0 && above_negative > 0)
    result.roc_auc = ordered_pairs / above_positive / above_negative;
  if (above_positive > 0) result.average_precision = precision_sum / above_positive;
  return result;
}

}  // namespace lathe
