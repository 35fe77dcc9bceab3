// evaluation_report_test.cc compares whole curves with scikit-learn's.
#include "lathe/data/metrics/precision_recall_curve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

using Doubles = std::vector<double>;
constexpr size_t kAll = std::numeric_limits<size_t>::max();

PrecisionRecallCurve CurveOf(const Doubles& scores, const std::vector<uint8_t>& positives,
                             size_t most_points = 100) {
  const auto curve = MakePrecisionRecallCurve(RankLevels(scores, positives), most_points);
  EXPECT_TRUE(curve);
  return curve.value_or(PrecisionRecallCurve{});
}

TEST(RankLevelsTest, CountsSamplesFromEachScoreOn) {
  const Doubles scores = {0.5, 0.25, 0.5, 0.75};
  const std::vector<RankLevel> levels = RankLevels(scores, std::vector<uint8_t>{1, 1, 0, 0});
  ASSERT_EQ(levels.size(), 3u);
  EXPECT_EQ(levels[0].score, 0.75);
  EXPECT_EQ(levels[0].positives, 0);
  EXPECT_EQ(levels[0].negatives, 1);
  EXPECT_EQ(levels[1].score, 0.5);
  EXPECT_EQ(levels[1].positives, 1);
  EXPECT_EQ(levels[1].negatives, 2);
  EXPECT_EQ(levels[2].score, 0.25);
  EXPECT_EQ(levels[2].positives, 2);
  EXPECT_EQ(levels[2].negatives, 2);
  EXPECT_TRUE(RankLevels({}, {}).empty());
  EXPECT_THROW(RankLevels(scores, std::vector<uint8_t>{1}), Error);
}

TEST(PrecisionRecallCurveTest, HasAPointForEachThresholdAndOneMore) {
  const PrecisionRecallCurve curve = CurveOf({0.2, 0.9, 0.4, 0.7, 0.4}, {0, 1, 1, 0, 0});
  EXPECT_EQ(curve.thresholds, (Doubles{0.2, 0.4, 0.7, 0.9}));
  EXPECT_EQ(curve.precision, (Doubles{2.0 / 5, 2.0 / 4, 1.0 / 2, 1, 1}));
  EXPECT_EQ(curve.recall, (Doubles{1, 1, 0.5, 0.5, 0}));
}

TEST(PrecisionRecallCurveTest, IsUndefinedWithoutPositives) {
  EXPECT_FALSE(MakePrecisionRecallCurve({}));
  EXPECT_FALSE(
      MakePrecisionRecallCurve(RankLevels(Doubles{0.5, 0.25}, std::vector<uint8_t>{0, 0})));
  const PrecisionRecallCurve all = CurveOf({0.5, 0.25}, {1, 1});
  EXPECT_EQ(all.precision, (Doubles{1, 1, 1}));
  EXPECT_EQ(all.recall, (Doubles{1, 0.5, 0}));
}

TEST(PrecisionRecallCurveTest, ALongCurveKeepsItsEndsAndItsShape) {
  Doubles scores;
  std::vector<uint8_t> positives;
  uint64_t random = 1;
  for (int i = 0; i < 5000; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const double noise = static_cast<double>(random >> 40) / static_cast<double>(1 << 24);
    positives.push_back(i % 5 == 0);
    scores.push_back(noise + (i % 5 == 0 ? 0.4 : 0));
  }
  const PrecisionRecallCurve full = CurveOf(scores, positives, kAll);
  ASSERT_GT(full.thresholds.size(), 4900u);
  for (const size_t most : {2u, 3u, 10u, 100u}) {
    const PrecisionRecallCurve thin = CurveOf(scores, positives, most);
    ASSERT_EQ(thin.precision.size(), thin.recall.size());
    ASSERT_EQ(thin.precision.size(), thin.thresholds.size() + 1);
    EXPECT_LE(thin.precision.size(), most);
    EXPECT_GE(thin.precision.size(), most * 3 / 4);
    EXPECT_EQ(thin.thresholds.front(), full.thresholds.front());
    EXPECT_EQ(thin.precision.front(), 0.2);
    EXPECT_EQ(thin.recall.front(), 1);
    EXPECT_EQ(thin.precision.back(), 1);
    EXPECT_EQ(thin.recall.back(), 0);
    // Each point is one of the full curve, and neighbours are near each other there.
    Doubles places = {0};
    for (size_t i = 1; i < full.recall.size(); ++i) {
      places.push_back(places.back() + std::abs(full.recall[i] - full.recall[i - 1]) +
                       std::abs(full.precision[i] - full.precision[i - 1]));
    }
    const double part = places.back() / static_cast<double>(most - 1);
    double last = 0;
    for (size_t i = 0; i < thin.recall.size(); ++i) {
      const auto at = i < thin.thresholds.size()
                          ? std::lower_bound(full.thresholds.begin(), full.thresholds.end(),
                                             thin.thresholds[i]) -
                                full.thresholds.begin()
                          : std::ssize(full.recall) - 1;
      const auto place = static_cast<size_t>(at);
      EXPECT_EQ(full.recall[place], thin.recall[i]);
      EXPECT_EQ(full.precision[place], thin.precision[i]);
      // Near recall 0 a single sample may change the precision by one half.
      EXPECT_LE(places[place] - last, 2 * part + 0.5) << most;
      last = places[place];
    }
  }
}

TEST(PrecisionRecallCurveTest, NeedsTwoPoints) {
  const std::vector<RankLevel> levels = {{.score = 0.5, .positives = 1, .negatives = 0}};
  EXPECT_THROW(MakePrecisionRecallCurve(levels, 1), Error);
  EXPECT_EQ(MakePrecisionRecallCurve(levels, 2)->recall, (Doubles{1, 0}));
}

}  // namespace
}  // namespace lathe
