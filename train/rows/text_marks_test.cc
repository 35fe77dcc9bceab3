#include "lathe/train/rows/text_marks.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

const TextColumns kColumns = {"text", ""};

struct Rows {
  TextMarks marks;
  TokenizedDataset dataset;
  std::vector<std::string> files;
};

// Rows of several files, whose labels are classes 0 to 9.
Rows RowsOf(const std::vector<std::string>& csvs, const std::string& name) {
  Rows rows;
  rows.dataset.has_labels = true;
  for (size_t file = 0; file < csvs.size(); ++file) {
    rows.files.push_back(name + std::to_string(file) + ".csv");
    const TextTable table = ParseTextTable(rows.files.back(), "text,label\n" + csvs[file]);
    rows.marks.Add(table, file, kColumns);
    for (const std::string& label : table.column("label")) {
      rows.dataset.classes.push_back(label[0] - '0');
      rows.dataset.offsets.push_back(0);
    }
  }
  return rows;
}

MarkedRows Marked(const Rows& rows) { return {&rows.marks, &rows.dataset, rows.files}; }

const LabelSet kLabels = LabelSet::Classes({"no", "yes", "maybe"});

TEST(TextMarksTest, FindsLabelsThatContradictEachOther) {
  EXPECT_EQ(NoteOnContradictions(Marked(RowsOf({"a,0\nb,1\na,0\n"}, "t")), kLabels), "");
  const Rows rows = RowsOf({"x,0\na,0\nb,1\n", "a,0\nb,1\nb,2\na,1\nb,0\n"}, "t");
  EXPECT_EQ(NoteOnContradictions(Marked(rows), kLabels),
            "2 texts have labels that contradict each other, such as: t0.csv:4 says \"yes\", "
            "t1.csv:4 says \"maybe\"");
  Rows scores = rows;
  scores.dataset.kind = LabelKind::kRegression;
  EXPECT_EQ(NoteOnContradictions(Marked(scores), LabelSet::Regression()), "");
  Rows several = rows;
  several.dataset.kind = LabelKind::kMultiLabel;
  several.dataset.num_labels = 2;
  several.dataset.scores.assign(16, 1.0f);
  const LabelSet names = LabelSet::MultiLabel({"p", "q"});
  EXPECT_EQ(NoteOnContradictions(Marked(several), names), "");
  several.dataset.scores[2 * 3] = 0;  // row 3 is the second "a"
  EXPECT_EQ(NoteOnContradictions(Marked(several), names),
            "1 text has labels that contradict each other, such as: t0.csv:3 says [\"p\", \"q\"], "
            "t1.csv:2 says [\"q\"]");
}

TEST(TextMarksTest, FindsTextsInTrainingAndValidation) {
  const Rows train = RowsOf({"a,0\nb,1\n", "c,0\na,1\n"}, "t");
  EXPECT_EQ(NoteOnOverlap(Marked(train), Marked(RowsOf({"d,0\n"}, "v")), kLabels), "");
  EXPECT_EQ(
      NoteOnOverlap(Marked(train), Marked(RowsOf({"d,0\nc,0\n"}, "v")), kLabels),
      "1 validation row has a text of the training data, which flatters the metrics, such as: "
      "v0.csv:3 has the text of t1.csv:2");
  // Any of the training rows with the text may have the label.
  EXPECT_EQ(NoteOnOverlap(Marked(train), Marked(RowsOf({"d,0\na,1\na,0\n"}, "v")), kLabels),
            "2 validation rows have a text of the training data, which flatters the metrics, such "
            "as: v0.csv:3 has the text of t0.csv:2");
}

TEST(TextMarksTest, CountsOverlapsWithAnotherLabel) {
  const Rows train = RowsOf({"a,0\nb,1\n", "c,0\na,1\n"}, "t");
  EXPECT_EQ(
      NoteOnOverlap(Marked(train),
                    Marked(RowsOf({"b,1\nc,1\na,2\nd,0\nc,2\nc,1\na,1\nc,0\n"}, "v")), kLabels),
      "7 validation rows have a text of the training data, which flatters the metrics, such "
      "as: v0.csv:2 has the text of t0.csv:3; 4 of them have another label than there, such "
      "as: v0.csv:3 says \"yes\", t1.csv:2 says \"no\"");
  Rows other = RowsOf({"c,1\n"}, "v");
  EXPECT_EQ(NoteOnOverlap(Marked(train), Marked(other), kLabels),
            "1 validation row has a text of the training data, such as: v0.csv:2 has the text of "
            "t1.csv:2; 1 of them has another label than there, such as: v0.csv:2 says \"yes\", "
            "t1.csv:2 says \"no\"");
  // Scores may differ.
  Rows scores = train;
  for (Rows* rows : {&scores, &other}) {
    rows->dataset.scores.assign(rows->dataset.classes.begin(), rows->dataset.classes.end());
    rows->dataset.kind = LabelKind::kRegression;
  }
  EXPECT_EQ(
      NoteOnOverlap(Marked(scores), Marked(other), LabelSet::Regression()),
      "1 validation row has a text of the training data, which flatters the metrics, such as: "
      "v0.csv:2 has the text of t1.csv:2");
}

TEST(TextMarksTest, NamesTheElementOfAnArray) {
  const TextTable lines = ParseTextTable("a.csv", "text\na\nb\n");
  const TextTable array = ParseTextTable("b.json", "[{\"text\":\"a\"},{\"text\":\"b\"}]");
  TextMarks marks;
  marks.Add(lines, 0, kColumns);
  EXPECT_TRUE(marks.elements().empty());
  marks.Add(array, 1, kColumns);
  marks.Add(lines, 2, kColumns);
  const TextMarks read = TextMarks::FromColumns(marks.hashes(), marks.places(), marks.elements());
  const std::vector<std::string> files = {"a.csv", "b.json", "c.csv"};
  for (const TextMarks& each : {marks, read}) {
    EXPECT_EQ(each.Where(1, files), "a.csv:3");
    EXPECT_EQ(each.Where(3, files), "b.json:1: element 2");
    EXPECT_EQ(each.Where(5, files), "c.csv:3");
  }
}

TEST(TextMarksTest, LooksAtNoMoreRowsThanPromised) {
  TextTable table;
  table.names = {"text"};
  table.columns = {std::vector<std::string>(static_cast<size_t>(kMostMarkedRows / 2), "a")};
  table.lines.assign(static_cast<size_t>(kMostMarkedRows / 2), 1);
  TextMarks marks;
  marks.Add(table, 0, kColumns);
  marks.Add(table, 1, kColumns);
  EXPECT_TRUE(marks.complete());
  EXPECT_EQ(static_cast<int64_t>(marks.size()), kMostMarkedRows);
  const TextMarks read = TextMarks::FromColumns(marks.hashes(), marks.places());
  EXPECT_EQ(read.Where(marks.size() - 1, {"a", "b"}), "b:1");
  marks.Add(table, 2, kColumns);
  EXPECT_FALSE(marks.complete());
  EXPECT_EQ(marks.size(), 0u);
  const TokenizedDataset dataset;
  EXPECT_EQ(NoteOnOverlap({&marks, &dataset, {}}, {&marks, &dataset, {}}, kLabels), "");
}

}  // namespace
}  // namespace lathe
