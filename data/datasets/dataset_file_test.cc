#include "lathe/data/datasets/dataset_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lathe/core/base/file.h"
#include "lathe/core/base/philox.h"
#include "lathe/data/datasets/data_loader.h"
#include "lathe/data/datasets/row_file.h"

namespace lathe {
namespace {

// Makes `n` samples of 1 to 40 tokens. The second half has two token types if `pairs` is set.
TokenizedDataset MakeDataset(int64_t n, LabelKind kind, bool pairs) {
  TokenizedDataset data;
  data.kind = kind;
  data.has_labels = true;
  data.num_labels = kind == LabelKind::kRegression ? 1 : 3;
  data.num_truncated = n / 3;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t length = 1 + i * 7 % 40;
    for (int64_t t = 0; t < length; ++t) {
      data.input_ids.push_back(static_cast<int32_t>((i * 131 + t * 17) % 30000));
      data.token_type_ids.push_back(pairs && 2 * i >= n && 2 * t >= length);
    }
    data.offsets.push_back(std::ssize(data.input_ids));
    if (kind == LabelKind::kSingleLabel) data.classes.push_back(i % 3);
    if (kind == LabelKind::kRegression) data.scores.push_back(0.25f * static_cast<float>(i));
    for (int label = 0; kind == LabelKind::kMultiLabel && label < 3; ++label)
      data.scores.push_back(static_cast<float>(i >> label & 1));
  }
  return data;
}

// Returns rows [begin, end) as a dataset of their own.
TokenizedDataset Slice(const TokenizedDataset& data, int64_t begin, int64_t end) {
  TokenizedDataset part;
  part.kind = data.kind;
  part.has_labels = data.has_labels;
  part.num_labels = data.num_labels;
  for (int64_t i = begin; i < end; ++i) {
    const TokenizedRow row = data.Row(i);
    part.input_ids.insert(part.input_ids.end(), row.input_ids.begin(), row.input_ids.end());
    for (const int32_t type : row.token_type_ids)
      part.token_type_ids.push_back(static_cast<uint8_t>(type));
    part.offsets.push_back(std::ssize(part.input_ids));
    if (data.kind == LabelKind::kSingleLabel)
      part.classes.push_back(data.classes[static_cast<size_t>(i)]);
    part.scores.insert(part.scores.end(), row.scores.begin(), row.scores.end());
    if (!data.sample_weights.empty())
      part.sample_weights.push_back(data.sample_weights[static_cast<size_t>(i)]);
  }
  return part;
}

template <typename T>
uint64_t Digest(const std::vector<T>& values) {
  return HashName({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}

class DatasetFileTest : public testing::Test {
 protected:
  // Writes the dataset in three parts.
  void Write(const TokenizedDataset& data, int64_t vocab_size = 30000) const {
    DatasetFileWriter writer(path_, path_,
                             {.kind = data.kind,
                              .num_labels = data.num_labels,
                              .has_labels = data.has_labels,
                              .vocab_size = vocab_size,
                              .has_sample_weights = !data.sample_weights.empty()});
    const int64_t n = data.size();
    TokenizedDataset first = Slice(data, 0, n / 4);
    first.num_truncated = data.num_truncated;
    writer.Append(first);
    writer.Append(Slice(data, n / 4, n / 2));
    writer.Append(Slice(data, n / 2, n));
    EXPECT_EQ(writer.num_rows(), n);
    writer.Finish({{"columns", {"a", "b"}}});
  }
  ~DatasetFileTest() override { unlink(path_.c_str()); }

  const std::string path_ = testing::TempDir() + "/dataset_" + std::to_string(getpid()) + ".h5";
};

TEST_F(DatasetFileTest, GivesTheRowsOfTheDatasetInMemory) {
  for (const LabelKind kind :
       {LabelKind::kSingleLabel, LabelKind::kMultiLabel, LabelKind::kRegression}) {
    for (const bool pairs : {false, true}) {
      for (const int64_t vocab_size : {30000, 100000}) {  // 16 and 32 bits
        const TokenizedDataset data = MakeDataset(20000, kind, pairs);
        Write(data, vocab_size);
        const TokenizedDataset read = OpenDatasetFile(path_);
        EXPECT_EQ(read.kind, kind);
        EXPECT_TRUE(read.has_labels);
        EXPECT_EQ(read.num_labels, data.num_labels);
        EXPECT_EQ(read.num_truncated, data.num_truncated);
        EXPECT_EQ(read.offsets, data.offsets);
        EXPECT_EQ(read.classes, data.classes);
        EXPECT_EQ(read.AllScores(), data.AllScores());
        EXPECT_TRUE(read.input_ids.empty());
        for (int64_t i = 0; i < data.size(); i += 37) {
          const TokenizedRow expected = data.Row(i), row = read.Row(i);
          ASSERT_EQ(row.input_ids, expected.input_ids) << i;
          ASSERT_EQ(row.token_type_ids, expected.token_type_ids) << i;
          ASSERT_EQ(row.scores, expected.scores) << i;
        }
        EXPECT_EQ(read.file->input_ids_digest(), Digest(data.input_ids));
        EXPECT_EQ(read.file->token_type_ids_digest(), Digest(data.token_type_ids));
        if (kind == LabelKind::kMultiLabel) {
          EXPECT_EQ(read.file->scores_digest(), Digest(data.scores));
        }
        EXPECT_EQ(DatasetFileTask(read).at("columns").at(1), "b");
        const DatasetExtent extent = DatasetFileExtent(read);
        EXPECT_EQ(extent.longest, 40);
        EXPECT_EQ(extent.largest_id, *std::ranges::max_element(data.input_ids));
        EXPECT_EQ(extent.largest_type, pairs ? 1 : 0);
      }
    }
  }
}

TEST_F(DatasetFileTest, KeepsSampleWeights) {
  TokenizedDataset data = MakeDataset(1000, LabelKind::kSingleLabel, false);
  Write(data);
  EXPECT_TRUE(OpenDatasetFile(path_).sample_weights.empty());
  unlink(path_.c_str());
  for (int i = 0; i < 1000; ++i) data.sample_weights.push_back(0.25f * static_cast<float>(i % 9));
  Write(data);
  EXPECT_EQ(OpenDatasetFile(path_).sample_weights, data.sample_weights);
  DatasetFileWriter writer(path_ + ".draft", path_, {.num_labels = 3, .vocab_size = 30000});
  EXPECT_THROW(writer.Append(data), Error);
  unlink((path_ + ".draft").c_str());
}

// The order and every batch of an epoch are those of the dataset in memory, on each of two ranks.
TEST_F(DatasetFileTest, GivesTheSameBatches) {
  const TokenizedDataset data = MakeDataset(501, LabelKind::kMultiLabel, true);
  Write(data);
  const auto in_memory = std::make_shared<const TokenizedDataset>(data);
  const auto in_file = std::make_shared<const TokenizedDataset>(OpenDatasetFile(path_));
  for (const bool group_by_length : {false, true}) {
    for (int rank = 0; rank < 2; ++rank) {
      const DataLoaderOptions options = {
          .batch_size = 8, .shuffle = true, .group_by_length = group_by_length, .seed = 5};
      DataLoader expected(in_memory, options), loader(in_file, options);
      expected.Shard(rank, 2, false, nullptr);
      loader.Shard(rank, 2, false, nullptr);
      auto batch = loader.begin();
      for (const Batch& other : expected) {
        ASSERT_TRUE(batch != loader.end());
        ASSERT_EQ(batch->indices, other.indices);
        ASSERT_EQ(batch->input_ids.ToVector<int32_t>(), other.input_ids.ToVector<int32_t>());
        ASSERT_EQ(batch->token_type_ids.ToVector<int32_t>(),
                  other.token_type_ids.ToVector<int32_t>());
        ASSERT_EQ(batch->labels.ToVector<float>(), other.labels.ToVector<float>());
        ++batch;
      }
      EXPECT_TRUE(batch == loader.end());
    }
  }
}

TEST_F(DatasetFileTest, FindsADamagedRowWhenItIsRead) {
  Write(MakeDataset(1000, LabelKind::kSingleLabel, false));
  int64_t address = 0, begin = 0;
  {
    const TokenizedDataset whole = OpenDatasetFile(path_);
    begin = whole.offsets[700];
    address = ColumnFile(path_).Find("input_ids")->addresses.at(0);
  }
  std::string bytes = ReadFile(path_);
  bytes[static_cast<size_t>(address + 2 * begin)] ^= 1;
  WriteFileAtomically(path_, bytes);
  const TokenizedDataset data = OpenDatasetFile(path_);
  EXPECT_FALSE(data.Row(699).input_ids.empty());
  try {
    data.Row(700);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), path_ + ": is damaged: row 700 has another digest");
    EXPECT_EQ(e.hint(), "remove the file; it is made again when needed");
  }
}

// A file that another process cuts off gives an error, not a signal.
TEST_F(DatasetFileTest, FindsAFileThatWasCutOff) {
  Write(MakeDataset(1000, LabelKind::kSingleLabel, false));
  const TokenizedDataset data = OpenDatasetFile(path_);
  ASSERT_EQ(truncate(path_.c_str(), 100), 0);
  EXPECT_THROW(data.Row(999), Error);
}

// Returns VmHWM, the most memory that the process has had since its last call, in bytes. A call
// resets it.
int64_t TakePeakMemory() {
  std::ifstream status("/proc/self/status");
  int64_t peak = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) peak = 1024 * std::stoll(line.substr(6));
  }
  std::ofstream("/proc/self/clear_refs") << "5";
  return peak;
}

// 30 million tokens would take 150 MB in memory. The file needs 20 bytes for each row, the order of
// an epoch 8 and its lengths 4 while they are read.
TEST_F(DatasetFileTest, NeedsLittleMemory) {
  constexpr int64_t kRows = 1000000;
  TakePeakMemory();
  const int64_t before = TakePeakMemory();
  {
    TokenizedDataset block;
    block.has_labels = true;
    block.num_labels = 2;
    for (int64_t i = 0; i < 10000; ++i) {
      for (int64_t t = 0; t < 30; ++t) block.input_ids.push_back(static_cast<int32_t>(i + t));
      block.offsets.push_back(std::ssize(block.input_ids));
      block.classes.push_back(i % 2);
    }
    block.token_type_ids.resize(block.input_ids.size());
    DatasetFileWriter writer(path_, path_, {.num_labels = 2, .vocab_size = 30000});
    while (writer.num_rows() < kRows) writer.Append(block);
    writer.Finish();
  }
  EXPECT_LT(TakePeakMemory() - before, 20 << 20);
  DataLoader loader(OpenDatasetFile(path_), {.batch_size = 64, .group_by_length = true});
  int64_t tokens = 0, batches = 0;
  for (const Batch& batch : loader) {
    tokens += batch.num_tokens();
    if (++batches == 3000) break;
  }
  EXPECT_EQ(tokens, 3000 * 64 * 30);
  EXPECT_LT(TakePeakMemory() - before, 32 * kRows + (16 << 20));
}

TEST_F(DatasetFileTest, RefusesOtherLabels) {
  DatasetFileWriter writer(path_, path_,
                           {.kind = LabelKind::kRegression, .num_labels = 1, .vocab_size = 10});
  EXPECT_THROW(writer.Append(MakeDataset(3, LabelKind::kSingleLabel, false)), Error);
  EXPECT_THROW(writer.Append(MakeDataset(3, LabelKind::kRegression, false)), Error);  // ids
}

}  // namespace
}  // namespace lathe
