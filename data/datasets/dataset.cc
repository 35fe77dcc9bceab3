#include "lathe/data/datasets/dataset.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <thread>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/data/datasets/row_file.h"

namespace lathe {
namespace {

constexpr int64_t kRowsPerChunk = 256;  // small, so that no thread idles if some texts are long
// The largest score allowed: a float may not hold the square of a larger error, nor the mean of
// such squares.
constexpr float kLargestScore = 1e18f;
// The largest sample weight allowed. Sums of such weights are far from overflowing a float.
constexpr double kLargestWeight = 1e12;

// The encoded rows of one chunk, in order.
struct Chunk {
  std::vector<int32_t> input_ids;
  std::vector<uint8_t> token_type_ids;
  std::vector<int64_t> lengths;
  int64_t num_truncated = 0;
  std::exception_ptr error;
};

// Returns a name that occurs twice, or "" if there is none.
std::string Repeated(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  const auto found = std::adjacent_find(names.begin(), names.end());
  return found == names.end() ? "" : *found;
}

void AddLabel(const TextTable& table, int64_t row, const std::string& label, const LabelSet& labels,
              TokenizedDataset& dataset) {
  if (label.empty()) throw EmptyLabel(table.Where(row));
  switch (labels.kind()) {
    case LabelKind::kSingleLabel: {
      std::optional<int64_t> index = labels.Index(label);
      if (!index) throw UnseenLabel(table.Where(row), label, labels);
      dataset.classes.push_back(*index);
      break;
    }
    case LabelKind::kRegression: {
      const float score = static_cast<float>(ParseNumber(label).value_or(NAN));
      if (!std::isfinite(score)) {
        throw InvalidArgument(table.Where(row) + ": score \"" + label + "\" is not a finite number",
                              "correct the score or remove the row");
      }
      if (std::abs(score) > kLargestScore) {
        throw InvalidArgument(table.Where(row) + ": score \"" + label +
                                  "\" is too large: the square of its error would overflow",
                              "correct the score, or divide all scores by one number");
      }
      dataset.scores.push_back(score);
      break;
    }
    case LabelKind::kMultiLabel: {
      auto names = ParseLabelArray(label);
      if (!names) {
        throw InvalidArgument(table.Where(row) + ": labels \"" + label + "\" are not a JSON array",
                              "write them as [\"a\", \"b\"]");
      }
      if (const std::string twice = Repeated(*names); !twice.empty()) {
        throw InvalidArgument(
            table.Where(row) + ": labels " + label + " name \"" + twice + "\" twice",
            "list each label of the row once; Lathe does not read a list of zeros and ones");
      }
      const size_t begin = dataset.scores.size();
      dataset.scores.resize(begin + labels.num_labels(), 0.0f);
      for (const std::string& name : *names) {
        std::optional<int64_t> index = labels.Index(name);
        if (!index) throw UnseenLabel(table.Where(row), name, labels);
        dataset.scores[begin + *index] = 1.0f;
      }
      break;
    }
  }
}

// Reads the sample weights of all rows.
std::vector<float> ReadWeights(const TextTable& table, const std::string& column) {
  std::vector<float> weights;
  const std::vector<std::string>& texts = table.column(column);
  for (int64_t row = 0; row < table.rows(); ++row) {
    const double weight = ParseNumber(texts[row]).value_or(NAN);
    if (!(weight >= 0 && weight <= kLargestWeight)) {
      throw InvalidArgument(
          table.Where(row) + ": sample weight \"" + texts[row] +
              "\" is not a number from 0 to 1e+12",
          "correct the column \"" + column + "\", or divide all weights by one number");
    }
    weights.push_back(static_cast<float>(weight));
  }
  return weights;
}

// Encodes a row. An error, such as a text that the tokenizer has no tokens for, names the row.
Encoding EncodeRow(const TextTable& table, const std::vector<std::string>& first,
                   const std::vector<std::string>* second, const Tokenizer& tokenizer,
                   int64_t max_length, int64_t row) {
  std::optional<std::string_view> pair;
  if (second != nullptr) pair = (*second)[row];
  try {
    return tokenizer.Encode(first[row], pair, max_length);
  } catch (const Error& error) {
    throw Error(error.code(), table.Where(row) + ": " + error.message(), error.hint());
  }
}

Chunk EncodeRows(const TextTable& table, const std::vector<std::string>& first,
                 const std::vector<std::string>* second, const Tokenizer& tokenizer,
                 int64_t max_length, int64_t begin, int64_t end) {
  Chunk chunk;
  for (int64_t row = begin; row < end; ++row) {
    Encoding encoding = EncodeRow(table, first, second, tokenizer, max_length, row);
    chunk.num_truncated += encoding.truncated;
    chunk.input_ids.insert(chunk.input_ids.end(), encoding.input_ids.begin(),
                           encoding.input_ids.end());
    for (int32_t type : encoding.token_type_ids) {
      chunk.token_type_ids.push_back(static_cast<uint8_t>(type));
    }
    chunk.lengths.push_back(std::ssize(encoding.input_ids));
  }
  return chunk;
}

// Encodes all rows on `num_threads` threads; 0 means all cores. Each thread takes a new chunk when
// it is done with one. Every chunk's result has its own place, so neither the dataset nor the
// reported error depends on the number of threads.
std::vector<Chunk> EncodeAllRows(const TextTable& table, const std::vector<std::string>& first,
                                 const std::vector<std::string>* second, const Tokenizer& tokenizer,
                                 int64_t max_length, int num_threads) {
  const int64_t rows = std::ssize(first);
  std::vector<Chunk> chunks((rows + kRowsPerChunk - 1) / kRowsPerChunk);
  std::atomic<size_t> next = 0;
  auto work = [&] {
    for (size_t c; (c = next++) < chunks.size();) {
      const int64_t begin = static_cast<int64_t>(c) * kRowsPerChunk;
      const int64_t end = std::min(begin + kRowsPerChunk, rows);
      try {
        chunks[c] = EncodeRows(table, first, second, tokenizer, max_length, begin, end);
      } catch (...) {
        chunks[c].error = std::current_exception();
        return;
      }
    }
  };
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const size_t wanted = num_threads > 0 ? static_cast<size_t>(num_threads) : cores;
  std::vector<std::jthread> threads;  // this thread is one of the workers
  for (size_t i = 1; i < std::min(wanted, chunks.size()); ++i) threads.emplace_back(work);
  work();
  threads.clear();  // waits for the others
  return chunks;
}

}  // namespace

TokenizedRow TokenizedDataset::Row(int64_t i) const {
  const int64_t begin = offsets[i], end = offsets[i + 1];
  if (file != nullptr) {
    RowData data = file->Read(i, begin, end);
    TokenizedRow row{.input_ids = std::move(data.input_ids),
                     .token_type_ids = {data.token_type_ids.begin(), data.token_type_ids.end()},
                     .scores = {data.label_flags.begin(), data.label_flags.end()}};
    if (has_labels && kind == LabelKind::kRegression) row.scores = {scores[i]};
    return row;
  }
  TokenizedRow row{.input_ids = {input_ids.begin() + begin, input_ids.begin() + end},
                   .token_type_ids = {token_type_ids.begin() + begin, token_type_ids.begin() + end},
                   .scores = {}};
  if (has_labels && kind != LabelKind::kSingleLabel) {
    const int64_t width = kind == LabelKind::kMultiLabel ? num_labels : 1;
    row.scores = {scores.begin() + i * width, scores.begin() + (i + 1) * width};
  }
  return row;
}

void TokenizedDataset::Append(const TokenizedDataset& part) {
  Check(file == nullptr && part.file == nullptr, "dataset", "only rows in memory can be appended");
  Check(kind == part.kind && has_labels == part.has_labels && num_labels == part.num_labels,
        "dataset", "the appended rows have labels of another kind");
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(input_ids, part.input_ids);
  append(token_type_ids, part.token_type_ids);
  append(classes, part.classes);
  append(scores, part.scores);
  append(sample_weights, part.sample_weights);
  const int64_t before = offsets.back();
  for (size_t i = 1; i < part.offsets.size(); ++i) offsets.push_back(before + part.offsets[i]);
  num_truncated += part.num_truncated;
}

std::vector<float> TokenizedDataset::AllScores() const {
  if (file == nullptr || kind != LabelKind::kMultiLabel || !has_labels) return scores;
  std::vector<float> all;
  for (int64_t i = 0; i < size(); ++i) {
    const std::vector<float> row = Row(i).scores;
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

TokenizedDataset Tokenize(const TextTable& table, const TextColumns& columns,
                          const LabelSet& labels, const Tokenizer& tokenizer,
                          const TokenizeOptions& options) {
  Check(options.max_length >= 0, "tokenize", "max_length must not be negative but is ",
        options.max_length);
  Check(options.num_threads >= 0, "tokenize", "num_threads must not be negative but is ",
        options.num_threads);
  const std::vector<std::string>& first = table.column(columns.first);
  const std::vector<std::string>* second =
      columns.second.empty() ? nullptr : &table.column(columns.second);

  TokenizedDataset dataset;
  dataset.kind = labels.kind();
  dataset.num_labels = labels.num_labels();
  dataset.has_labels =
      !options.label_column.empty() && (options.require_labels || table.has(options.label_column));
  if (dataset.has_labels) {  // before the costly part: a bad label is reported at once
    const std::vector<std::string>& column = table.column(options.label_column);
    for (int64_t row = 0; row < table.rows(); ++row) {
      AddLabel(table, row, column[row], labels, dataset);
    }
  }
  if (!options.weight_column.empty())
    dataset.sample_weights = ReadWeights(table, options.weight_column);

  std::vector<Chunk> chunks =
      EncodeAllRows(table, first, second, tokenizer, options.max_length, options.num_threads);
  dataset.offsets.reserve(table.rows() + 1);
  for (Chunk& chunk : chunks) {
    if (chunk.error) std::rethrow_exception(chunk.error);
    dataset.input_ids.insert(dataset.input_ids.end(), chunk.input_ids.begin(),
                             chunk.input_ids.end());
    dataset.token_type_ids.insert(dataset.token_type_ids.end(), chunk.token_type_ids.begin(),
                                  chunk.token_type_ids.end());
    for (int64_t length : chunk.lengths) {
      dataset.offsets.push_back(dataset.offsets.back() + length);
    }
    dataset.num_truncated += chunk.num_truncated;
    chunk = {};  // so that there are never two copies of the whole dataset
  }
  return dataset;
}

}  // namespace lathe
