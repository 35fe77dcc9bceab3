#include "lathe/train/support/class_weights.h"

#include <gtest/gtest.h>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"

namespace lathe {
namespace {

using Weights = std::vector<std::pair<std::string, double>>;

std::string ErrorOf(const std::string& text) {
  try {
    ReadClassWeights(text);
    return "";
  } catch (const Error& e) {
    return e.message();
  }
}

std::string File(const std::string& text) {
  const std::string path = testing::TempDir() + "weights.json";
  WriteFileAtomically(path, text);
  return path;
}

TEST(ClassWeightsTest, ReadsAllForms) {
  EXPECT_EQ(ReadClassWeights("none"), Weights());
  EXPECT_EQ(ReadClassWeights("balanced"), Weights());
  EXPECT_EQ(ReadClassWeights("a=2,b=0.5"), (Weights{{"a", 2}, {"b", 0.5}}));
  EXPECT_EQ(ReadClassWeights("x=y=3,4=1e2"), (Weights{{"x=y", 3}, {"4", 100}}));
  EXPECT_EQ(ReadClassWeights(File("{\"a, b\": 2, \"c\": 0.5}")),
            (Weights{{"a, b", 2}, {"c", 0.5}}));
  EXPECT_EQ(ReadClassWeights(R"({"a, b": 2, "c": 0.5})"), (Weights{{"a, b", 2}, {"c", 0.5}}));
}

TEST(ClassWeightsTest, ObjectsThatAreNoWeights) {
  EXPECT_EQ(ErrorOf("{a: 2}"), "class_weights:1:2: not valid JSON");
  EXPECT_EQ(ErrorOf(R"({"a": 2, "a": 50, "b": 1})"), "class_weights: \"a\" appears twice");
  EXPECT_EQ(ErrorOf("{\"a\": -2}"),
            "class_weights: the weight of label \"a\" must be a positive number up to 1e+12 but is "
            "-2");
}

TEST(ClassWeightsTest, PutsThemInOrder) {
  EXPECT_EQ(InOrderOfLabels({{"b", 2}, {"a", 0.5}}, {"a", "b"}), (std::vector<float>{0.5, 2}));
}

TEST(ClassWeightsTest, WeightsThatAreNoPositiveNumbers) {
  for (const std::string weight : {"0", "-1", "x", "", "nan", "inf", "1e13", "1 2"}) {
    EXPECT_EQ(ErrorOf("a=1,b=" + weight),
              "class_weights: the weight of label \"b\" must be a positive number up to 1e+12 but "
              "is \"" +
                  weight + "\"");
  }
  for (const std::string weight : {"0", "-1", "\"2\"", "null", "[1]", "true"}) {
    const std::string path = File("{\"b\": " + weight + "}");
    EXPECT_EQ(ErrorOf(path), path +
                                 ": the weight of label \"b\" must be a positive number up to "
                                 "1e+12 but is " +
                                 weight);
  }
}

TEST(ClassWeightsTest, TextsThatAreNoWeights) {
  EXPECT_EQ(ErrorOf("balance"), "class_weights: \"balance\" is no LABEL=WEIGHT");
  EXPECT_EQ(ErrorOf(""), "class_weights: \"\" is no LABEL=WEIGHT");
  EXPECT_EQ(ErrorOf("a=1,"), "class_weights: \"\" is no LABEL=WEIGHT");
  EXPECT_EQ(ErrorOf("=1"), "class_weights: \"=1\" is no LABEL=WEIGHT");
  EXPECT_EQ(ErrorOf("a=1,a=2"), "class_weights: label \"a\" has two weights");
  for (const auto& [text, error] : std::vector<std::pair<std::string, std::string>>{
           {"[1, 2]", ": expected a JSON object of labels and their weights"},
           {"3", ": expected a JSON object of labels and their weights"},
           {"{\"a\": 1,\n\"b\" 2}", ":2:5: not valid JSON behind \"b\""},
           {"{\"a\": 1", ":1:8: not valid JSON behind \"a\""},
           {"", ":1:1: not valid JSON"},
           {"{\"a\": 2, \"a\": 50, \"b\": 1}", ": \"a\" appears twice"}}) {
    const std::string path = File(text);
    EXPECT_EQ(ErrorOf(path), path + error);
  }
  EXPECT_NE(ErrorOf("missing/weights.json").find("missing/weights.json"), std::string::npos);
}

}  // namespace
}  // namespace lathe
