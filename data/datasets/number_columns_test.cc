#include "lathe/data/datasets/number_columns.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"

namespace lathe {
namespace {

using Strings = std::vector<std::string>;
using Floats = std::vector<float>;
using Integers = std::vector<int64_t>;

// Returns the error's message. A place in a file comes with a hint.
std::string MessageOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.hint().empty(), e.message().starts_with('[')) << e.message();
    return e.message();
  }
  return "nothing was thrown";
}

TextTable Flowers() {
  return ParseTextTable("a.csv",
                        "length,count,species\n"
                        "1.5, 3 ,rose\n"
                        "-2e-1,7,tulip\n"
                        "+4,-9007199254740993,rose\n");
}

TEST(NumberColumnsTest, ColumnsStandInTheOrderOfTheirNames) {
  const TextTable table = Flowers();
  const Tensor numbers = NumberColumns(table, {"count", "length", "count"});
  EXPECT_EQ(numbers.shape(), (Shape{3, 3}));
  EXPECT_EQ(numbers.ToVector<float>(),
            (Floats{3, 1.5f, 3, 7, -0.2f, 7, -9007199254740992.f, 4, -9007199254740992.f}));
  EXPECT_EQ(NumberColumn(table, "length").shape(), Shape{3});
  EXPECT_EQ(NumberColumn(table, "length").ToVector<float>(), (Floats{1.5f, -0.2f, 4}));
}

TEST(NumberColumnsTest, WholeNumbersAreExact) {
  const TextTable table = Flowers();
  EXPECT_EQ(NumberColumn(table, "count", DType::kI64).ToVector<int64_t>(),
            (Integers{3, 7, -9007199254740993}));
  const TextTable written =
      ParseTextTable("a.tsv", "n\n3.0\n1e3\n+5\n-0.0\n9223372036854775807 \n");
  EXPECT_EQ(NumberColumns(written, {"n"}, DType::kI64).shape(), (Shape{5, 1}));
  EXPECT_EQ(NumberColumn(written, "n", DType::kI64).ToVector<int64_t>(),
            (Integers{3, 1000, 5, 0, INT64_MAX}));
}

TEST(NumberColumnsTest, ReadsJson) {
  const TextTable table =
      ParseTextTable("a.jsonl", "{\"x\": 0.25, \"y\": \"7\"}\n{\"y\": 8, \"x\": 1e-3}\n");
  EXPECT_EQ(NumberColumns(table, {"x", "y"}).ToVector<float>(), (Floats{0.25f, 7, 1e-3f, 8}));
  const TextTable flags = ParseTextTable("a.jsonl", "{\"x\": 1}\n{\"x\": true}\n");
  EXPECT_EQ(MessageOf([&] { NumberColumn(flags, "x"); }),
            "a.jsonl:2: \"true\" in column \"x\" is not a finite number");
}

TEST(NumberColumnsTest, AnErrorNamesTheRowTheColumnAndTheText) {
  const auto message = [](const std::string& value, DType dtype) {
    const TextTable table = ParseTextTable("a.csv", "a,b\n1,2\n3," + value + "\n");
    return MessageOf([&] { NumberColumns(table, {"a", "b"}, dtype); });
  };
  for (const std::string value : {"abc", "1,5", "1.5x", "nan", "inf", "1e39", "-1e400", "--1"}) {
    const std::string quoted = value == "1,5" ? "\"1,5\"" : value;
    EXPECT_EQ(message(quoted, DType::kF32),
              "a.csv:3: \"" + value + "\" in column \"b\" is not a finite number");
  }
  for (const std::string value : {"1.5", "9223372036854775808", "1e16", "nan", "0x10", "-", " "}) {
    EXPECT_EQ(message(value, DType::kI64),
              "a.csv:3: \"" + value + "\" in column \"b\" is not a whole number");
  }
  for (const DType dtype : {DType::kF32, DType::kI64})
    EXPECT_EQ(message("", dtype), "a.csv:3: column \"b\" has no value");
  EXPECT_EQ(MessageOf([] { NumberColumn(Flowers(), "width"); }),
            "a.csv: no column \"width\"; it has: length, count, species");
  EXPECT_EQ(MessageOf([] { NumberColumns(Flowers(), {}); }),
            "[number_columns] expected at least one column");
  EXPECT_EQ(MessageOf([] { NumberColumn(Flowers(), "length", DType::kI32); }),
            "[number_columns] the dtype must be float32 or int64 but is int32");
}

TEST(NumberColumnsTest, ClassesAreTheirPlacesAmongTheLabels) {
  const TextTable table = Flowers();
  const LabelSet labels = LabelSet::Infer({&table.column("species")});
  EXPECT_EQ(ClassColumn(table, "species", labels).ToVector<int64_t>(), (Integers{0, 1, 0}));
  const TextTable other = ParseTextTable("b.csv", "species\nrose\nlily\n");
  EXPECT_EQ(MessageOf([&] { ClassColumn(other, "species", labels); }),
            "b.csv:3: label \"lily\" was not seen in training; known labels: rose, tulip");
  const TextTable empty = ParseTextTable("b.csv", "species,n\nrose,1\n,2\n");
  EXPECT_EQ(MessageOf([&] { ClassColumn(empty, "species", labels); }),
            "b.csv:3: the label is empty");
  EXPECT_EQ(MessageOf([&] { ClassColumn(table, "length", LabelSet::Regression()); }),
            "a.csv: the labels of column \"length\" are no classes");
}

TEST(NumberColumnsTest, TheOtherColumns) {
  EXPECT_EQ(ColumnsExcept(Flowers(), {"species"}), (Strings{"length", "count"}));
  EXPECT_EQ(ColumnsExcept(Flowers(), {}), Flowers().names);
  EXPECT_EQ(MessageOf([] { ColumnsExcept(Flowers(), {"label"}); }),
            "a.csv: no column \"label\"; it has: length, count, species");
}

// The file is larger than the pieces in which it is read.
TEST(NumberColumnsTest, ReadsAFilePieceByPiece) {
  constexpr int64_t kRows = 200000;
  const std::string path =
      testing::TempDir() + "/number_columns_" + std::to_string(getpid()) + ".csv";
  std::string text = "text,half,n\n";
  const std::string filler(64, 'x');
  for (int64_t i = 0; i < kRows; ++i)
    text += filler + "," + std::to_string(i / 2) + (i % 2 == 0 ? ".0," : ".5,") +
            std::to_string(i) + "\n";
  ASSERT_GT(text.size(), size_t{8} << 20);
  WriteFileAtomically(path, text);
  const Tensor numbers = ReadNumberColumns(path, {"n", "half"});
  ASSERT_EQ(numbers.shape(), (Shape{kRows, 2}));
  const Tensor targets = ReadNumberColumn(path, "n", DType::kI64);
  ASSERT_EQ(targets.shape(), Shape{kRows});
  for (int64_t i = 0; i < kRows; ++i) {
    ASSERT_EQ(numbers.data<float>()[2 * i], static_cast<float>(i));
    ASSERT_EQ(numbers.data<float>()[2 * i + 1], static_cast<float>(i) / 2);
    ASSERT_EQ(targets.data<int64_t>()[i], i);
  }
  WriteFileAtomically(path, text + "last,1,one\n");
  EXPECT_EQ(
      MessageOf([&] { ReadNumberColumn(path, "n"); }),
      path + ":" + std::to_string(kRows + 2) + ": \"one\" in column \"n\" is not a finite number");
  WriteFileAtomically(path, "n\n");
  EXPECT_EQ(MessageOf([&] { ReadNumberColumn(path, "n"); }),
            MessageOf([&] { ReadTextTable(path); }));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace lathe
