#include "lathe/data/datasets/label_set.h"

#include <gtest/gtest.h>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

using Strings = std::vector<std::string>;

LabelSet Infer(const Strings& column) { return LabelSet::Infer({&column}); }

std::string MessageOfInfer(const Strings& column) {
  try {
    Infer(column);
  } catch (const Error& error) {
    return error.message();
  }
  return "nothing was thrown";
}

TEST(LabelSetTest, IntegersAreClassesInOrderOfValue) {
  LabelSet labels = Infer({"10", "2", "-1", "2", "10"});
  EXPECT_EQ(labels.kind(), LabelKind::kSingleLabel);
  EXPECT_EQ(labels.names(), (Strings{"-1", "2", "10"}));
  EXPECT_EQ(labels.num_labels(), 3);
  EXPECT_EQ(labels.Index("10"), 2);
  EXPECT_EQ(labels.Index("3"), std::nullopt);
}

TEST(LabelSetTest, StringsAreClassesInOrderOfCodePoint) {
  // By code point U+FF5E sorts before U+1F600; by UTF-16 unit it would not.
  const std::string tilde = "\xEF\xBD\x9E", face = "\xF0\x9F\x98\x80";
  EXPECT_EQ(Infer({face, "b", tilde, "B", "10", "9"}).names(),
            (Strings{"10", "9", "B", "b", tilde, face}));
}

TEST(LabelSetTest, FractionsAmongNumbersMeanRegression) {
  for (const Strings& column :
       {Strings{"1", "2.5", "3"}, {"4.0", "5.0"}, {"1e-2", "7"}, {"0.5", "nan"}, {" +0.5 ", "1"}}) {
    LabelSet labels = Infer(column);
    EXPECT_EQ(labels.kind(), LabelKind::kRegression) << column[0];
    EXPECT_EQ(labels.num_labels(), 1);
    EXPECT_TRUE(labels.names().empty());
  }
  EXPECT_EQ(Infer({"1.5", "good"}).kind(), LabelKind::kSingleLabel);
  EXPECT_EQ(Infer({"nan", "1"}).kind(), LabelKind::kSingleLabel);
}

TEST(LabelSetTest, ArraysMeanMultiLabel) {
  LabelSet labels = Infer({R"(["joy", "fear"])", "[]", R"(["anger","joy"])"});
  EXPECT_EQ(labels.kind(), LabelKind::kMultiLabel);
  EXPECT_EQ(labels.names(), (Strings{"anger", "fear", "joy"}));
  EXPECT_EQ(Infer({"[10, 9]"}).names(), (Strings{"9", "10"}));
  EXPECT_EQ(Infer({"[draft", "[final]"}).kind(), LabelKind::kSingleLabel);  // not JSON
}

TEST(LabelSetTest, SeveralColumnsAndEmptyLabels) {
  const Strings train{"no", "", "yes"}, validation{"maybe"};
  EXPECT_EQ(LabelSet::Infer({&train, &validation}).names(), (Strings{"maybe", "no", "yes"}));
}

TEST(LabelSetTest, BadLabels) {
  EXPECT_EQ(MessageOfInfer({"", ""}), "[labels] every label is empty");
  EXPECT_EQ(MessageOfInfer({"a", "a"}),
            "[labels] there is only one class, \"a\", but at least two are needed");
  EXPECT_EQ(MessageOfInfer({"[\"a\"]", "b"}),
            "[labels] some labels are arrays and others are not: [\"a\"] and \"b\"");
  EXPECT_EQ(MessageOfInfer({"[1.0,0.0]"}),
            "[labels] [1.0,0.0] must hold names of labels only but holds 1.0");
  EXPECT_EQ(MessageOfInfer({"[\"a\"]", "[null]"}),
            "[labels] [null] must hold names of labels only but holds null");
  EXPECT_EQ(MessageOfInfer({"[]"}), "[labels] every array of labels is empty");
  EXPECT_THROW(LabelSet::Classes({"a", "b", "a"}), Error);
}

TEST(LabelSetTest, NamedClassesKeepTheirOrder) {
  LabelSet labels = LabelSet::Classes({"entailment", "contradiction"});
  EXPECT_EQ(labels.Index("contradiction"), 1);
}

TEST(ParseNumberTest, TakesTheWholeText) {
  EXPECT_EQ(ParseNumber(" 1.5\t"), 1.5);
  EXPECT_EQ(ParseNumber("-2e3"), -2000.0);
  for (const char* bad : {"", " ", "1.5x", "1,5", "+-1", "--1", "one", "0x10"}) {
    EXPECT_EQ(ParseNumber(bad), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace lathe
