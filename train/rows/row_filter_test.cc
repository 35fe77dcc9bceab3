#include "lathe/train/rows/row_filter.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

using Strings = std::vector<std::string>;

const TextColumns kColumns = {"text", "more"};

TextTable Table(const std::string& rows) {
  return ParseTextTable("t.csv", "text,more,label\n" + rows);
}

TEST(RowFilterTest, TakesRowsOutOfATable) {
  TextTable table = Table("a,1,x\nb,2,y\nc,3,z\nd,4,x\n");
  table.without_text = {"more"};
  const TextTable taken = TakeRows(table, {true, false, false, true});
  EXPECT_EQ(taken.column("text"), (Strings{"a", "d"}));
  EXPECT_EQ(taken.column("label"), (Strings{"x", "x"}));
  EXPECT_EQ(taken.lines, (std::vector<int64_t>{2, 5}));
  EXPECT_EQ(taken.path, "t.csv");
  EXPECT_EQ(taken.without_text, table.without_text);
  EXPECT_EQ(table.column("text"), (Strings{"b", "c"}));
  EXPECT_EQ(table.column("more"), (Strings{"2", "3"}));
  EXPECT_EQ(table.lines, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(TakeRows(table, {false, false}).rows(), 0);
  EXPECT_EQ(table.rows(), 2);
  EXPECT_EQ(TakeRows(table, {true, true}).rows(), 2);
  EXPECT_EQ(table.rows(), 0);
}

// Returns the texts that a filter keeps of rows in blocks of so many.
Strings Kept(const DataSplit& split, const Strings& rows, size_t block, int64_t dropped,
             LabelKind kind = LabelKind::kSingleLabel) {
  const FinetuneArguments options;
  RowFilter filter(split, options, kind, nullptr);
  Strings kept;
  for (size_t begin = 0; begin < rows.size(); begin += block) {
    std::string text;
    for (size_t i = begin; i < std::min(begin + block, rows.size()); ++i) text += rows[i] + "\n";
    TextTable table = Table(text);
    filter.Apply(table, kColumns);
    for (int64_t row = 0; row < table.rows(); ++row)
      kept.push_back(table.columns[0][static_cast<size_t>(row)] +
                     table.columns[1][static_cast<size_t>(row)] +
                     table.columns[2][static_cast<size_t>(row)]);
  }
  EXPECT_EQ(filter.num_dropped(), dropped) << block;
  return kept;
}

TEST(RowFilterTest, DropsDuplicatesOfTextsAndLabel) {
  const Strings rows = {"a,1,x", "a,1,x", "a,1,y", "1,a,x", "a,,x",
                        ",a,x",  "a,1,x", "b,1,x", "a,,x"};
  for (const size_t block : {1, 2, 3, 100}) {
    EXPECT_EQ(Kept({.drops_duplicates = true}, rows, block, 3),
              (Strings{"a1x", "a1y", "1ax", "ax", "ax", "b1x"}));
    // The rows to use are counted behind that, and so are those that were dropped before them.
    EXPECT_EQ(Kept({.drops_duplicates = true, .max_rows = 2}, rows, block, 1),
              (Strings{"a1x", "a1y"}));
    EXPECT_EQ(Kept({.drops_duplicates = true, .max_rows = 6}, rows, block, 2).size(), 6u);
    EXPECT_EQ(Kept({.max_rows = 2}, rows, block, 0), (Strings{"a1x", "a1x"}));
    EXPECT_EQ(Kept({}, rows, block, 0).size(), rows.size());
  }
}

TEST(RowFilterTest, ComparesWhatLabelsMean) {
  const Strings several = {"a,1,\"[\"\"x\"\",\"\"y\"\"]\"",
                           "a,1,\"[\"\"y\"\", \"\"x\"\"]\"",
                           "a,1,\"[\"\"x\"\"]\"",
                           "a,1,\"[\"\"x\"\" ]\"",
                           "a,1,[{}]",
                           "a,1,none"};
  const Strings scores = {"a,1,1", "a,1,1.0", "a,1,1.00", "a,1,1e0",
                          "a,1,2", "a,1,0",   "a,1,-0.0", "a,1,none"};
  const DataSplit split = {.drops_duplicates = true};
  for (const size_t block : {1, 100}) {
    EXPECT_EQ(Kept(split, several, block, 2, LabelKind::kMultiLabel),
              (Strings{"a1[\"x\",\"y\"]", "a1[\"x\"]", "a1[{}]", "a1none"}));
    EXPECT_EQ(Kept(split, scores, block, 4, LabelKind::kRegression),
              (Strings{"a11", "a12", "a10", "a1none"}));
    EXPECT_EQ(Kept(split, scores, block, 0).size(), scores.size());  // names of classes
  }
}

TEST(RowFilterTest, RowsKeepTheNumbersOfTheirElements) {
  TextTable table = ParseTextTable(
      "t.json", "[{\"text\":\"a\"},{\"text\":\"b\"},{\"text\":\"c\"},{\"text\":\"d\"}]");
  const TextTable taken = TakeRows(table, {true, false, true, false});
  EXPECT_EQ(taken.elements, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(table.elements, (std::vector<int64_t>{2, 4}));
}

TEST(RowFilterTest, HashesTellTextsApart) {
  EXPECT_EQ(HashOfTexts("a", "b"), HashOfTexts("a", "b"));
  EXPECT_NE(HashOfTexts("a", "b"), HashOfTexts("b", "a"));
  EXPECT_NE(HashOfTexts("ab", ""), HashOfTexts("a", "b"));
  EXPECT_NE(HashOfTexts("a", ""), HashOfTexts("", "a"));
}

TEST(RowFilterTest, SaysHowManyRowsItDropped) {
  EXPECT_EQ(NoteOnDuplicates({.name = "training"}, 0), "");
  EXPECT_EQ(NoteOnDuplicates({.name = "training"}, 1),
            "drop_duplicates leaves out 1 repeated row of the training data");
}

}  // namespace
}  // namespace lathe
