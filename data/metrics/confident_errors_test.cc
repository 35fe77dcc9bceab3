#include "lathe/data/metrics/confident_errors.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

TEST(ConfidentErrorsTest, TheMostProbableComesFirst) {
  // Samples 1, 2, 3 and 5 are wrong. 2 and 5 are equally sure.
  const Predictions predictions{.logits = {2, 0, 0, 1, 3, 0, 0, 2, 0, 1, 0, 3},
                                .classes = {0, 0, 1, 0, 1, 0}};
  const auto errors = MostConfidentErrors(predictions, 100);
  ASSERT_EQ(errors.size(), 4u);
  EXPECT_EQ(errors[0].sample, 2);
  EXPECT_EQ(errors[1].sample, 5);
  EXPECT_EQ(errors[2].sample, 3);
  EXPECT_EQ(errors[3].sample, 1);
  EXPECT_NEAR(errors[0].probability, 1 / (1 + std::exp(-3.0)), 1e-12);
  EXPECT_EQ(MostConfidentErrors(predictions, 2).size(), 2u);
  EXPECT_TRUE(MostConfidentErrors({.logits = {2, 0}, .classes = {0}}, 100).empty());
}

TEST(ConfidentErrorsTest, SeveralLabelsCountTheirWorstAnswer) {
  const Predictions predictions{.kind = LabelKind::kMultiLabel,
                                .num_labels = 2,
                                .logits = {1, -4, 2, -1, 3, 3},
                                .scores = {0, 1, 0, 0, 1, 1}};
  const auto errors = MostConfidentErrors(predictions, 100);
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_EQ(errors[0].sample, 0);  // it has the second label, which has a probability of 0.018
  EXPECT_NEAR(errors[0].probability, 1 / (1 + std::exp(-4.0)), 1e-12);
  EXPECT_EQ(errors[1].sample, 1);
  EXPECT_NEAR(errors[1].probability, 1 / (1 + std::exp(-2.0)), 1e-12);
}

TEST(ConfidentErrorsTest, SizesMustFit) {
  EXPECT_THROW(MostConfidentErrors({.logits = {0, 1}, .classes = {0, 1}}, 1), Error);
  EXPECT_THROW(MostConfidentErrors({.kind = LabelKind::kRegression, .num_labels = 1}, 1), Error);
}

}  // namespace
}  // namespace lathe
