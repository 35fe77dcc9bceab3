// How well scores rank the samples that have a label above those that don't.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace lathe {

struct RankingScores {
  // The area under the ROC curve, as scikit-learn's roc_auc_score: the share of pairs of a positive
  // and a negative sample in which the positive one scores higher. Equal scores count one half.
  // Undefined unless both kinds of samples are there.
  std::optional<double> roc_auc = {};
  // The sum over distinct scores, from the highest, of (R_k - R_{k-1}) P_k, where R and P are
  // recall and precision of the samples down to that score: scikit-learn's average_precision_score.
  // Undefined without positive samples, where scikit-learn has 0.
  std::optional<double> average_precision = {};
};

// `positives` are [n] of 0 and 1. Throws unless there is a score for each.
RankingScores RankScores(std::span<const double> scores, std::span<const uint8_t> positives);

}  // namespace lathe
