#include "lathe/train/loss_options.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using Json = nlohmann::json;
using Names = std::vector<std::string>;

TokenizedDataset Classes(std::vector<int64_t> classes, int64_t num_labels) {
  TokenizedDataset data;
  data.has_labels = true;
  data.num_labels = num_labels;
  data.offsets.resize(classes.size() + 1);
  data.classes = std::move(classes);
  return data;
}

TokenizedDataset SeveralLabels(std::vector<float> flags, int64_t num_labels) {
  TokenizedDataset data;
  data.kind = LabelKind::kMultiLabel;
  data.has_labels = true;
  data.num_labels = num_labels;
  data.offsets.resize(flags.size() / static_cast<size_t>(num_labels) + 1);
  data.scores = std::move(flags);
  return data;
}

TrainingArguments Weights(const std::string& weights) {
  TrainingArguments arguments;
  arguments.class_weights = weights;
  return arguments;
}

TrainingArguments Smoothing(double factor) {
  TrainingArguments arguments;
  arguments.label_smoothing_factor = factor;
  return arguments;
}

TrainingArguments Focal(double gamma) {
  TrainingArguments arguments;
  arguments.focal_gamma = gamma;
  return arguments;
}

std::string ErrorOf(const TrainingArguments& arguments, const Names& labels, LabelKind kind,
                    const TokenizedDataset* train = nullptr) {
  try {
    LossOptionsOf(arguments, labels, kind, train, Device{});
    return "";
  } catch (const Error& e) {
    return e.message();
  }
}

TEST(LossOptionsTest, NothingIsPlain) {
  EXPECT_TRUE(LossOptionsOf({}, {"a", "b"}, LabelKind::kSingleLabel, nullptr, Device{}).plain());
  EXPECT_TRUE(LossOptionsOf({}, {"LABEL_0"}, LabelKind::kRegression, nullptr, Device{}).plain());
}

TEST(LossOptionsTest, BalancedWeightsAreThoseOfScikitLearn) {
  const Json golden = ParseJson(ReadFile("models/testdata/losses_golden.json"));
  ASSERT_EQ(golden.at("balanced").size(), 2u);
  for (const Json& of : golden.at("balanced")) {
    std::vector<int64_t> classes = of.at("labels");
    classes.push_back(-100);  // counts nowhere
    const auto expected = of.at("weights").get<std::vector<double>>();
    Names labels;
    for (size_t i = 0; i < expected.size(); ++i) labels.push_back(std::to_string(i));
    const TokenizedDataset train = Classes(classes, std::ssize(expected));
    const std::vector<float> weights =
        LossOptionsOf(Weights("balanced"), labels, LabelKind::kSingleLabel, &train, Device{})
            .ClassWeights();
    ASSERT_EQ(weights.size(), expected.size());
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(weights[i], expected[i], 1e-6);
  }
}

TEST(LossOptionsTest, BalancedWeightsOfSeveralLabelsAreNegativesByPositives) {
  const TokenizedDataset train = SeveralLabels({1, 0, 1, 0, 1, 1, 0, 0}, 2);
  EXPECT_EQ(LossOptionsOf(Weights("balanced"), {"a", "b"}, LabelKind::kMultiLabel, &train, Device{})
                .ClassWeights(),
            (std::vector<float>{1.0f / 3, 3}));
}

TEST(LossOptionsTest, LabelsWithoutABalancedWeight) {
  const TokenizedDataset classes = Classes({0, 0, 2}, 3);
  EXPECT_EQ(ErrorOf(Weights("balanced"), {"a", "b", "c"}, LabelKind::kSingleLabel, &classes),
            "class_weights balanced: no training sample has the label \"b\"");
  const TokenizedDataset flags = SeveralLabels({1, 0, 1, 1}, 2);
  EXPECT_EQ(ErrorOf(Weights("balanced"), {"a", "b"}, LabelKind::kMultiLabel, &flags),
            "class_weights balanced: all training samples have the label \"a\"");
}

TEST(LossOptionsTest, OptionsThatTheLabelsDoNotHave) {
  EXPECT_EQ(ErrorOf(Smoothing(0.1), {"a", "b"}, LabelKind::kMultiLabel),
            "label_smoothing_factor needs one class for each row, but a row may have several "
            "labels at once");
  EXPECT_EQ(ErrorOf(Smoothing(0.1), {"LABEL_0"}, LabelKind::kRegression),
            "label_smoothing_factor needs one class for each row, but the labels are scores");
  EXPECT_EQ(ErrorOf(Focal(2), {"LABEL_0"}, LabelKind::kRegression),
            "focal_gamma needs classes, but the labels are scores");
  EXPECT_EQ(ErrorOf(Weights("a=1"), {"LABEL_0"}, LabelKind::kRegression),
            "class_weights needs classes, but the labels are scores");
  EXPECT_EQ(ErrorOf(Focal(2), {"a", "b"}, LabelKind::kMultiLabel), "");
}

TEST(LossOptionsTest, UnknownAndMissingLabels) {
  EXPECT_EQ(ErrorOf(Weights("a=1,b=2,x=3"), {"a", "b"}, LabelKind::kSingleLabel),
            "class_weights: \"x\" is not one of the labels a, b");
  EXPECT_EQ(ErrorOf(Weights("a=1"), {"a", "b"}, LabelKind::kSingleLabel),
            "class_weights: there is no weight for label \"b\"");
}

}  // namespace
}  // namespace lathe
