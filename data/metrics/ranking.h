// How well scores rank the samples that have a label above those that don't.
//
//   std::vector<RankLevel> levels = RankLevels(scores, positives);
//   RankingScores areas = RankScores(levels);
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace lathe {

// A score, and how many samples have this one or a higher one.
struct RankLevel {
  double score = 0;
  int64_t positives = 0, negatives = 0;
};

// Returns the distinct scores, the highest first. `positives` are [n] of 0 and 1. Throws unless
// there is a score for each.
std::vector<RankLevel> RankLevels(std::span<const double> scores,
                                  std::span<const uint8_t> positives);

struct RankingScores {
  // The area under the ROC curve, as scikit-learn's roc_auc_score. It is the share of pairs of a
  // positive and a negative sample in which the positive one scores higher. Equal scores count one
  // half. Undefined unless both kinds of samples are there.
  std::optional<double> roc_auc = {};
  // The sum over distinct scores, from the highest, of (R_k - R_{k-1}) P_k: scikit-learn's
  // average_precision_score. R and P are recall and precision of the samples down to that score.
  // Undefined without positive samples, where scikit-learn has 0.
  std::optional<double> average_precision = {};
};

// Both values are undefined without levels.
RankingScores RankScores(std::span<const RankLevel> levels);

}  // namespace lathe
