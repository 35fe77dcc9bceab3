#include "lathe/data/datasets/dataset.h"

#include <gtest/gtest.h>

#include <atomic>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

// A tokenizer with one token per byte and the templates `1 A 2` and `1 A 2 B 2`. It refuses texts
// that contain '!'.
class ByteTokenizer : public Tokenizer {
 public:
  ByteTokenizer() {
    using Kind = TemplateItem::Kind;
    single_template_ = {{Kind::kSpecial, 1, 0}, {Kind::kFirst, 0, 0}, {Kind::kSpecial, 2, 0}};
    pair_template_ = single_template_;
    pair_template_.push_back({Kind::kSecond, 0, 1});
    pair_template_.push_back({Kind::kSpecial, 2, 1});
  }
  int64_t vocab_size() const override { return 256; }
  std::optional<int32_t> TokenToId(std::string_view) const override { return std::nullopt; }
  std::string IdToToken(int32_t) const override { return ""; }
  bool makes_token_type_ids() const override { return true; }
  void SavePretrained(const std::string&) const override {}
  const std::map<std::string, std::string>& files() const override { return files_; }
  int num_encoded() const { return num_encoded_; }

 protected:
  std::vector<int32_t> EncodeText(std::string_view text) const override {
    ++num_encoded_;
    if (text.find('!') != std::string_view::npos) throw InvalidArgument(std::string(text));
    return {text.begin(), text.end()};
  }

 private:
  mutable std::atomic<int> num_encoded_ = 0;
  std::map<std::string, std::string> files_;
};

const LabelSet kClasses = LabelSet::Classes({"no", "yes"});

TokenizedDataset Make(const std::string& csv, const LabelSet& labels,
                      TokenizeOptions options = {}) {
  TextTable table = ParseTextTable("t.csv", csv);
  return Tokenize(table, ChooseTextColumns(table, {}), labels, ByteTokenizer(), options);
}

std::string MessageOfMake(const std::string& csv, const LabelSet& labels) {
  try {
    Make(csv, labels);
  } catch (const Error& error) {
    EXPECT_FALSE(error.hint().empty()) << error.what();
    return error.message();
  }
  return "nothing was thrown";
}

TEST(TokenizeTest, SingleTextsAndClasses) {
  TokenizedDataset data = Make("text,label\nA,yes\n\"\",no\nBC,yes\n", kClasses);
  EXPECT_EQ(data.input_ids, (std::vector<int32_t>{1, 'A', 2, 1, 2, 1, 'B', 'C', 2}));
  EXPECT_EQ(data.token_type_ids, std::vector<uint8_t>(9, 0));
  EXPECT_EQ(data.offsets, (std::vector<int64_t>{0, 3, 5, 9}));
  EXPECT_EQ(data.classes, (std::vector<int64_t>{1, 0, 1}));
  EXPECT_TRUE(data.has_labels);
  EXPECT_EQ(data.num_labels, 2);
  EXPECT_EQ(data.size(), 3);
  EXPECT_EQ(data.length(2), 4);
  EXPECT_EQ(data.num_truncated, 0);
}

TEST(TokenizeTest, PairsAreCutAndCounted) {
  // The first row just fits, the second loses two tokens.
  TokenizedDataset data = Make("a,b,label\nAA,BB,yes\nAAAA,BB,no\n", kClasses, {.max_length = 7});
  EXPECT_EQ(data.input_ids, (std::vector<int32_t>{1, 'A', 'A', 2, 'B', 'B', 2,  //
                                                  1, 'A', 'A', 2, 'B', 'B', 2}));
  EXPECT_EQ(data.token_type_ids, (std::vector<uint8_t>{0, 0, 0, 0, 1, 1, 1,  //
                                                       0, 0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(data.num_truncated, 1);
}

TEST(TokenizeTest, EachTextIsEncodedOnceEvenIfItIsCut) {
  const TextTable table = ParseTextTable("t.csv", "a,b,label\nAA,BB,yes\nAAAA,BBBB,no\n");
  const ByteTokenizer tokenizer;
  const TokenizedDataset data =
      Tokenize(table, ChooseTextColumns(table, {}), kClasses, tokenizer, {.max_length = 7});
  EXPECT_EQ(data.num_truncated, 1);
  EXPECT_EQ(tokenizer.num_encoded(), 4);
}

TEST(TokenizeTest, ScoresAndSetsOfLabels) {
  TokenizedDataset scores = Make("text,label\na,0.5\nb,3\n", LabelSet::Regression());
  EXPECT_EQ(scores.scores, (std::vector<float>{0.5f, 3.0f}));
  EXPECT_EQ(scores.num_labels, 1);
  TokenizedDataset sets = Make("text,label\na,\"[\"\"y\"\"]\"\nb,[]\nc,\"[\"\"z\"\",\"\"x\"\"]\"\n",
                               LabelSet::MultiLabel({"x", "y", "z"}));
  EXPECT_EQ(sets.scores, (std::vector<float>{0, 1, 0, 0, 0, 0, 1, 0, 1}));
  EXPECT_EQ(sets.kind, LabelKind::kMultiLabel);
}

TEST(TokenizeTest, PartsMakeTheWhole) {
  const LabelSet several = LabelSet::MultiLabel({"a", "b"});
  for (const auto& [labels, rows] :
       {std::pair(&kClasses, std::vector<std::string>{"x,yes\n", "long text,no\nyy,yes\n"}),
        std::pair(&several, std::vector<std::string>{"x,\"[\"\"a\"\"]\"\nyy,[]\n",
                                                     "long text,\"[\"\"b\"\"]\"\n"})}) {
    const TokenizeOptions options = {.max_length = 5};
    const std::string header = "text,label\n";
    TokenizedDataset joined = Make(header + rows[0], *labels, options);
    joined.Append(Make(header + rows[1], *labels, options));
    const TokenizedDataset whole = Make(header + rows[0] + rows[1], *labels, options);
    EXPECT_EQ(joined.input_ids, whole.input_ids);
    EXPECT_EQ(joined.token_type_ids, whole.token_type_ids);
    EXPECT_EQ(joined.offsets, whole.offsets);
    EXPECT_EQ(joined.classes, whole.classes);
    EXPECT_EQ(joined.scores, whole.scores);
    EXPECT_EQ(joined.num_truncated, whole.num_truncated);
    EXPECT_EQ(joined.num_truncated, 1);
  }
  TokenizedDataset scores = Make("text,label\nx,0.5\n", LabelSet::Regression());
  EXPECT_THROW(scores.Append(Make("text,label\nx,yes\n", kClasses)), Error);
}

TEST(TokenizeTest, LabelsMayBeAbsent) {
  const std::string csv = "text\na\nb\n";
  EXPECT_EQ(MessageOfMake(csv, kClasses), "t.csv: no column \"label\"; it has: text");
  TokenizedDataset data = Make(csv, kClasses, {.require_labels = false});
  EXPECT_FALSE(data.has_labels);
  EXPECT_TRUE(data.classes.empty());
  EXPECT_EQ(data.size(), 2);
  // GLUE's test files have labels of -1, which a prediction ignores.
  EXPECT_FALSE(Make("text,label\na,-1\n", kClasses, {.label_column = ""}).has_labels);
}

TEST(TokenizeTest, BadLabelsAreReportedWithTheirLine) {
  EXPECT_EQ(MessageOfMake("text,label\na,yes\n\"b\nb\",no\nc,perhaps\n", kClasses),
            "t.csv:5: label \"perhaps\" was not seen in training; known labels: no, yes");
  EXPECT_EQ(MessageOfMake("text,label\na,yes\nb,\n", kClasses), "t.csv:3: the label is empty");
  const LabelSet regression = LabelSet::Regression();
  for (const std::string bad : {"good", "nan", "inf", "1e39", "1.5 points"}) {
    EXPECT_EQ(MessageOfMake("text,label\na,0.5\nb," + bad + "\n", regression),
              "t.csv:3: score \"" + bad + "\" is not a finite number");
  }
  EXPECT_EQ(MessageOfMake("text,label\nb,\n", regression), "t.csv:2: the label is empty");
  EXPECT_EQ(MessageOfMake("text,label\na,1e18\nb,-1.1e18\n", regression),
            "t.csv:3: score \"-1.1e18\" is too large: the square of its error would overflow");
  const LabelSet sets = LabelSet::MultiLabel({"x", "y"});
  EXPECT_EQ(MessageOfMake("text,label\na,\"[\"\"y\"\"]\"\nb,\"[0,1,0]\"\n",
                          LabelSet::MultiLabel({"0", "1", "y"})),
            "t.csv:3: labels [0,1,0] name \"0\" twice");
  EXPECT_EQ(MessageOfMake("text,label\na,x\n", sets), "t.csv:2: labels \"x\" are not a JSON array");
  EXPECT_EQ(MessageOfMake("text,label\na,\"[\"\"q\"\"]\"\n", sets),
            "t.csv:2: label \"q\" was not seen in training; known labels: x, y");
}

TEST(TokenizeTest, SampleWeights) {
  const TextTable table = ParseTextTable("t.csv", "w,text,label\n0,a,yes\n2.5,b,no\n");
  const TextColumns columns = ChooseTextColumns(table, {}, "label", "w");
  EXPECT_EQ(columns.first, "text");
  EXPECT_EQ(columns.second, "");
  const ByteTokenizer tokenizer;
  EXPECT_EQ(Tokenize(table, columns, kClasses, tokenizer, {.weight_column = "w"}).sample_weights,
            (std::vector<float>{0, 2.5}));
  EXPECT_TRUE(Tokenize(table, columns, kClasses, tokenizer, {}).sample_weights.empty());
  EXPECT_THROW(Tokenize(table, columns, kClasses, tokenizer, {.weight_column = "v"}), Error);
}

TEST(TokenizeTest, BadSampleWeightsAreReportedWithTheirLine) {
  for (const std::string bad : {"", "-1", "nan", "inf", "2e12", "1 2", "heavy"}) {
    const TextTable table = ParseTextTable("t.csv", "text,label,w\na,yes,1\nb,no," + bad + "\n");
    try {
      Tokenize(table, {.first = "text", .second = ""}, kClasses, ByteTokenizer(),
               {.weight_column = "w"});
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.message(),
                "t.csv:3: sample weight \"" + bad + "\" is not a number from 0 to 1e+12");
    }
  }
}

std::string ManyRows(int rows, int bad_every = 0) {
  std::string csv = "text,label\n";
  for (int i = 0; i < rows; ++i) {
    csv += std::string(i * 7 % 23, static_cast<char>('a' + i % 26)) + std::to_string(i);
    csv += bad_every > 0 && i % bad_every == bad_every - 1 ? "!,yes\n" : ",no\n";
  }
  return csv;
}

TEST(TokenizeTest, ResultDoesNotDependOnThreads) {
  const std::string csv = ManyRows(2000);
  const TokenizedDataset one = Make(csv, kClasses, {.max_length = 16, .num_threads = 1});
  ASSERT_EQ(one.size(), 2000);
  EXPECT_GT(one.num_truncated, 0);
  for (int threads : {0, 2, 7, 64}) {
    const TokenizedDataset many = Make(csv, kClasses, {.max_length = 16, .num_threads = threads});
    EXPECT_EQ(many.input_ids, one.input_ids);
    EXPECT_EQ(many.offsets, one.offsets);
    EXPECT_EQ(many.num_truncated, one.num_truncated);
  }
}

TEST(TokenizeTest, TheFirstErrorReachesTheCaller) {
  const std::string csv = ManyRows(3000, /*bad_every=*/700);
  for (int threads : {1, 8}) {
    try {
      Make(csv, kClasses, {.num_threads = threads});
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_TRUE(error.message().starts_with("t.csv:701: ")) << error.message();
      EXPECT_TRUE(error.message().ends_with("699!")) << error.message();
    }
  }
}

}  // namespace
}  // namespace lathe
