#include "lathe/data/metrics/ranking.h"

#include <algorithm>
#include <numeric>

#include "lathe/core/base/error.h"

namespace lathe {

std::vector<RankLevel> RankLevels(std::span<const double> scores,
                                  std::span<const uint8_t> positives) {
  Check(scores.size() == positives.size(), "ranking", "expected a score for each of ",
        positives.size(), " samples but got ", scores.size());
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });

  std::vector<RankLevel> levels;
  RankLevel level;
  for (size_t i = 0; i < order.size(); ++i) {
    ++(positives[order[i]] != 0 ? level.positives : level.negatives);
    if (i + 1 < order.size() && scores[order[i + 1]] == scores[order[i]]) continue;
    level.score = scores[order[i]];
    levels.push_back(level);
  }
  return levels;
}

RankingScores RankScores(std::span<const RankLevel> levels) {
  double above_positive = 0, above_negative = 0;
  double ordered_pairs = 0, precision_sum = 0;
  for (const RankLevel& level : levels) {
    const double positive = static_cast<double>(level.positives) - above_positive;
    const double negative = static_cast<double>(level.negatives) - above_negative;
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
