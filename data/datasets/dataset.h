// Turns text files into tokenized data for classification.
//
//   TextTable table = ReadTextTable("train.csv");
//   TextColumns columns = ChooseTextColumns(table, {});            // as run_glue chooses
//   LabelSet labels = LabelSet::Infer({&table.column("label")});
//   TokenizedDataset train = Tokenize(table, columns, labels, *tokenizer, {.max_length = 128});
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/data/datasets/label_set.h"
#include "lathe/data/datasets/text_table.h"
#include "lathe/data/tokenizers/tokenizer.h"

namespace lathe {

class RowFile;

// One sample of a dataset. Its class is in TokenizedDataset::classes.
struct TokenizedRow {
  std::vector<int32_t> input_ids, token_type_ids;
  std::vector<float> scores;  // one score, or 0/1 for each of several labels; else empty
};

// A tokenized dataset: one flat array of ids, and the offsets of the samples in it. The ids may lie
// in a file instead (OpenDatasetFile in dataset_file.h).
struct TokenizedDataset {
  // If it is not null, the rows are read from it. Then input_ids and token_type_ids are empty, and
  // so are the scores of several labels at once.
  std::shared_ptr<const RowFile> file = {};
  std::vector<int32_t> input_ids;       // all sequences, one after another
  std::vector<uint8_t> token_type_ids;  // same length
  std::vector<int64_t> offsets{0};      // [n+1]; sample i begins at offsets[i]
  LabelKind kind = LabelKind::kSingleLabel;
  bool has_labels = false;
  std::vector<int64_t> classes;  // [n] single-label
  std::vector<float> scores;     // [n] regression, [n * num_labels] 0/1 multi-label
  // [n] how much each sample counts in the training loss; empty: all count alike.
  std::vector<float> sample_weights;
  int64_t num_labels = 0;
  int64_t num_truncated = 0;  // samples that lost tokens to max_length

  int64_t size() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t num_tokens() const { return offsets.back(); }
  int64_t length(int64_t i) const { return offsets[i + 1] - offsets[i]; }
  // Returns sample i. Several threads may call it. Throws DataLoss if a file is damaged there.
  TokenizedRow Row(int64_t i) const;
  // Appends the samples of another dataset in memory, which has the same kind of labels.
  void Append(const TokenizedDataset& part);
  // Returns the scores of all samples, from memory or from the file.
  std::vector<float> AllScores() const;
};

struct TokenizeOptions {
  int64_t max_length = 128;            // 0: no truncation
  std::string label_column = "label";  // empty: no labels
  bool require_labels = true;      // false: a missing label column gives a dataset without labels
  std::string weight_column = "";  // the column of sample weights; empty: none
  int num_threads = 0;             // 0: all cores. The result does not depend on it.
};

// Tokenizes the rows of `table` and reads their labels. Throws `path:line: label "x" was not seen
// in training; known labels: ...`, `path:line: the label is empty`, `path:line: score "x" is not a
// finite number`, `path:line: sample weight "x" is not a number from 0 to 1e+12`, and what
// TextTable::column throws.
TokenizedDataset Tokenize(const TextTable& table, const TextColumns& columns,
                          const LabelSet& labels, const Tokenizer& tokenizer,
                          const TokenizeOptions& options);

}  // namespace lathe
