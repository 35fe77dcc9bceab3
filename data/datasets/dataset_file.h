// Keeps a tokenized dataset in a file (column_file.h), from which its rows are read one by one.
//
//   DatasetFileWriter writer("train.draft", "train.h5", {.vocab_size = tokenizer.vocab_size()});
//   for (const TextTable& block : blocks) writer.Append(Tokenize(block, ...));
//   writer.Finish();
//   ...
//   TokenizedDataset train = OpenDatasetFile("train.h5");
//
// The file's columns:
//   input_ids       16 bits each if the vocabulary allows it, else 32
//   token_type_ids  8 bits each; missing if all are 0
//   lengths         [n] 32 bits
//   labels          [n] classes of 64 bits, or scores in float32
//   label_flags     [n * num_labels] 8 bits, in place of labels if there are several at once
//   sample_weights  [n] float32; missing if all samples count alike
//   row_checks      [n] 32 bits: a hash of each row, which is compared whenever the row is read
//
// Memory holds 20 bytes for each row of an open file: where it begins, its class and its check.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lathe/data/column_files/column_file_writer.h"
#include "lathe/data/column_files/running_hash.h"
#include "lathe/data/datasets/dataset.h"

namespace lathe {

// What a model must be able to take.
struct DatasetExtent {
  int64_t longest = 0;  // tokens of a sample
  int64_t largest_id = -1;
  int64_t largest_type = 0;
};

class DatasetFileWriter {
 public:
  struct Options {
    LabelKind kind = LabelKind::kSingleLabel;
    int64_t num_labels = 0;
    bool has_labels = true;
    int64_t vocab_size = 0;  // ids are below it
    bool has_sample_weights = false;
  };
  // Paths and errors are those of ColumnFileWriter.
  DatasetFileWriter(const std::string& path, const std::string& shown_path, const Options& options);

  // Appends the samples of a dataset in memory, which has the kind of labels of the options.
  void Append(const TokenizedDataset& part);

  // Adds a column of the caller's own, with one number for each row, when all rows are there.
  void AddColumn(const std::string& name, const std::vector<int64_t>& values);

  // Ends the file. `task` is for the reader's use (DatasetFileTask); null if it is left out.
  void Finish(const nlohmann::json& task);
  void Finish();

  int64_t num_rows() const { return num_rows_; }

 private:
  void AppendIds(const std::vector<int32_t>& ids);
  void AppendTypes(const std::vector<uint8_t>& types);
  void AppendLabels(const TokenizedDataset& part);

  ColumnFileWriter writer_;
  Options options_;
  bool narrow_;  // ids have 16 bits
  bool has_types_ = false;
  int64_t num_rows_ = 0, num_tokens_ = 0, num_truncated_ = 0;
  DatasetExtent extent_;
  RunningHash input_ids_hash_, token_type_ids_hash_, scores_hash_;
};

// Opens a finished file. Reads what memory holds and verifies that; rows are verified when they are
// read. Throws NotFound if there is no file, and DataLoss if it is damaged or not whole.
TokenizedDataset OpenDatasetFile(const std::string& path);

// DatasetFileTask returns what Finish was given, and DatasetFileExtent what the writer saw. The
// dataset must be one of OpenDatasetFile.
const nlohmann::json& DatasetFileTask(const TokenizedDataset& dataset);
DatasetExtent DatasetFileExtent(const TokenizedDataset& dataset);
// Returns a column of AddColumn; nullopt if there is none.
std::optional<std::vector<int64_t>> DatasetFileColumn(const TokenizedDataset& dataset,
                                                      const std::string& name);

}  // namespace lathe
