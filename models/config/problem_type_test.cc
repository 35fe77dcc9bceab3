#include "lathe/models/config/problem_type.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

TEST(ProblemType, StandsForOneKindOfLabels) {
  for (const LabelKind kind :
       {LabelKind::kSingleLabel, LabelKind::kMultiLabel, LabelKind::kRegression}) {
    EXPECT_EQ(FindLabelKind(ProblemType(kind)), kind);
  }
  EXPECT_EQ(FindLabelKind(""), std::nullopt);
  EXPECT_EQ(FindLabelKind("ranking"), std::nullopt);
  EXPECT_EQ(KnownProblemTypes(),
            "regression, single_label_classification, multi_label_classification");
}

TEST(ProblemType, TheNumberOfOutputsDecidesIfNothingElseDoes) {
  EXPECT_EQ(OutputKind("", 1), LabelKind::kRegression);
  EXPECT_EQ(OutputKind("", 2), LabelKind::kSingleLabel);
  EXPECT_EQ(OutputKind("regression", 2), LabelKind::kRegression);
  EXPECT_EQ(OutputKind("single_label_classification", 1), LabelKind::kSingleLabel);
  EXPECT_EQ(OutputKind("multi_label_classification", 1), LabelKind::kMultiLabel);
}

}  // namespace
}  // namespace lathe
