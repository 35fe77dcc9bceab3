#include "lathe/train/rows/validation_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

const TextColumns kOne = {"text", ""}, kTwo = {"text", "more"};

// Rows of three classes, of which "rare" is small: text i has this class.
std::string ClassOf(int i) { return i % 20 == 0 ? "rare" : i % 3 == 0 ? "no" : "yes"; }

TextTable Rows(int begin, int end) {
  std::string csv = "text,more,label\n";
  for (int i = begin; i < end; ++i)
    csv += "text " + std::to_string(i) + "," + std::to_string(i % 7) + "," + ClassOf(i) + "\n";
  return ParseTextTable("t.csv", csv);
}

// Returns the texts that validate.
std::set<std::string> Validating(const ValidationRule& rule, const TextTable& table,
                                 const TextColumns& columns = kOne) {
  std::set<std::string> texts;
  const std::vector<bool> validates = rule.Validates(table, columns, "label");
  for (size_t row = 0; row < validates.size(); ++row) {
    if (validates[row]) texts.insert(table.columns[0][row]);
  }
  return texts;
}

ValidationRule RuleOf(double share, const TextTable& table,
                      LabelKind kind = LabelKind::kSingleLabel, const TextColumns& columns = kOne) {
  ValidationRule rule(share);
  rule.Add(table, columns, "label");
  rule.Decide(kind, table.path);
  return rule;
}

std::string ErrorOf(double share, const TextTable& table, LabelKind kind) {
  try {
    RuleOf(share, table, kind);
  } catch (const Error& e) {
    return e.message() + "|" + e.hint();
  }
  return "no error";
}

// The digests are those of `sha256sum`.
TEST(ValidationRuleTest, APlaceIsTheBeginningOfADigest) {
  EXPECT_EQ(PlaceOfRow("abc", "", false), 0xba7816bf8f01cfeau);
  EXPECT_EQ(PlaceOfRow("a", "b", true), 0x59b271ae1bbcb1d3u);
  EXPECT_NE(PlaceOfRow("a", "", true), PlaceOfRow("a", "", false));
}

TEST(ValidationRuleTest, KeepsAShareOfEachClass) {
  const TextTable table = Rows(0, 6000);
  for (const double share : {0.05, 0.1, 0.5, 0.9}) {
    const ValidationRule rule = RuleOf(share, table);
    std::map<std::string, double> rows, validating;
    const std::vector<bool> validates = rule.Validates(table, kOne, "label");
    for (size_t row = 0; row < validates.size(); ++row) {
      ++rows[table.columns[2][row]];
      validating[table.columns[2][row]] += validates[row];
      const double place = static_cast<double>(PlaceOfRow(table.columns[0][row], "", false));
      EXPECT_EQ(validates[row], place / 0x1p64 < share);
    }
    for (const auto& [label, count] : rows) {
      // Four standard deviations of as many draws.
      EXPECT_NEAR(validating[label] / count, share, 4 * std::sqrt(share * (1 - share) / count))
          << label;
    }
    EXPECT_TRUE(rule.notes().empty());
  }
}

TEST(ValidationRuleTest, RowsStayWhereTheyAreWhenOthersCome) {
  const TextTable few = Rows(0, 1000), more = Rows(0, 3000);
  const ValidationRule before = RuleOf(0.1, few), after = RuleOf(0.1, more);
  EXPECT_EQ(Validating(before, few), Validating(after, few));
  // They come in another order and in blocks, too.
  ValidationRule blocks(0.1);
  for (int begin = 2900; begin >= 0; begin -= 100)
    blocks.Add(Rows(begin, begin + 100), kOne, "label");
  blocks.Decide(LabelKind::kSingleLabel, "t.csv");
  EXPECT_EQ(Validating(blocks, few), Validating(before, few));
  const ValidationRule read = ValidationRule::FromJson(after.ToJson());
  EXPECT_EQ(Validating(read, more), Validating(after, more));
}

TEST(ValidationRuleTest, PairsCountAsAWhole) {
  const TextTable table = Rows(0, 1000);
  const ValidationRule pairs = RuleOf(0.2, table, LabelKind::kSingleLabel, kTwo);
  EXPECT_NE(Validating(pairs, table, kTwo), Validating(RuleOf(0.2, table), table));
}

// The places of d, b and a are 0.10, 0.24 and 0.79. A share of 0.01 moves the lowest of each class,
// and one of 0.5 moves the highest of y. So b is on both sides, but not with one label.
TEST(ValidationRuleTest, EqualTextsOfOneLabelStayTogether) {
  const TextTable table = ParseTextTable("t.csv", "text,label\nb,x\na,x\nb,x\nb,y\nd,y\nb,y\n");
  for (const double share : {0.01, 0.5}) {
    EXPECT_EQ(RuleOf(share, table).Validates(table, kOne, "label"),
              (std::vector<bool>{true, false, true, false, true, false}))
        << share;
  }
}

TEST(ValidationRuleTest, ASmallClassIsOnBothSides) {
  for (const double share : {0.0001, 0.9999}) {
    const TextTable table =
        ParseTextTable("t.csv", "text,label\na,x\nb,x\nc,x\na,x\nd,y\ne,y\nf,y\nd,y\n");
    const ValidationRule rule = RuleOf(share, table);
    const std::vector<bool> validates = rule.Validates(table, kOne, "label");
    for (const int begin : {0, 4}) {
      std::set<bool> sides(validates.begin() + begin, validates.begin() + begin + 4);
      EXPECT_EQ(sides.size(), 2u) << share;
      EXPECT_EQ(validates[static_cast<size_t>(begin)], validates[static_cast<size_t>(begin) + 3]);
    }
    const ValidationRule read = ValidationRule::FromJson(rule.ToJson());
    EXPECT_EQ(read.Validates(table, kOne, "label"), validates);
  }
}

// The places of d, b and a are 0.10, 0.24 and 0.79. In a class that is too small for its share one
// row is on the other side than its place says. That may be another row when rows come.
TEST(ValidationRuleTest, InASmallClassARowMayChangeSides) {
  const auto validating = [](double share, const std::string& rows) {
    const TextTable table = ParseTextTable("t.csv", "text,label\n" + rows);
    return Validating(RuleOf(share, table), table);
  };
  using Texts = std::set<std::string>;
  EXPECT_EQ(validating(0.01, "a,x\nb,x\n"), Texts{"b"});
  EXPECT_EQ(validating(0.01, "a,x\nb,x\nd,x\n"), Texts{"d"});        // b trains again
  EXPECT_EQ(validating(0.2, "a,x\nb,x\nd,x\n"), Texts{"d"});         // as its place says
  EXPECT_EQ(validating(0.9, "b,x\nd,x\n"), Texts{"d"});              // b trains
  EXPECT_EQ(validating(0.9, "b,x\nd,x\na,x\n"), (Texts{"b", "d"}));  // b validates again
}

TEST(ValidationRuleTest, AClassOfOneTextTrains) {
  const TextTable table = ParseTextTable("t.csv", "text,label\na,x\nb,x\nc,lone\nc,lone\nd,one\n");
  for (const double share : {0.0001, 0.9999}) {
    const ValidationRule rule = RuleOf(share, table);
    const std::vector<bool> validates = rule.Validates(table, kOne, "label");
    EXPECT_EQ(std::vector<bool>(validates.begin() + 2, validates.end()), std::vector<bool>(3));
    EXPECT_EQ(validates[0] + validates[1], 1);
    EXPECT_EQ(rule.notes(),
              std::vector<std::string>{"validation_split leaves no row for validation of 2 classes "
                                       "that have one text only: \"lone\", \"one\""});
  }
}

TEST(ValidationRuleTest, ScoresAndSeveralLabelsAreOneClass) {
  const TextTable table = ParseTextTable("t.csv", "text,label\na,0.5\nb,1.5\nc,2.5\n");
  for (const LabelKind kind : {LabelKind::kRegression, LabelKind::kMultiLabel}) {
    EXPECT_EQ(Validating(RuleOf(0.0001, table, kind), table).size(), 1u);
    EXPECT_EQ(Validating(RuleOf(0.9999, table, kind), table).size(), 2u);
  }
}

TEST(ValidationRuleTest, NeedsTwoTexts) {
  const TextTable same = ParseTextTable("t.csv", "text,label\na,x\na,y\n");
  for (const LabelKind kind : {LabelKind::kSingleLabel, LabelKind::kRegression}) {
    EXPECT_EQ(ErrorOf(0.5, same, kind),
              "t.csv: validation_split needs two different texts at least|add rows, or name a "
              "validation_file");
  }
  EXPECT_EQ(
      ErrorOf(0.5, ParseTextTable("t.csv", "text,label\na,x\nb,y\n"), LabelKind::kSingleLabel),
      "t.csv: validation_split needs a class with two different texts|add rows, or name a "
      "validation_file");
}

}  // namespace
}  // namespace lathe
