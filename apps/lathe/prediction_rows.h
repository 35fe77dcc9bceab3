// PredictionRows: gives the rows of data files back with predictions added, in the files' format.
//
//   PredictionRows rows({"in.csv"}, "out.csv", {.names = {"bad", "good"}});
//   WriteFileAtomically("out.csv", [&](const std::string& temporary) {
//     rows.Open(temporary, first_block);
//     rows.Write(first_block, 0, predictions); ...
//     rows.Close();
//   });
//
// New columns: `prediction`; for classifiers `probability`, with 6 significant digits; with
// `all_scores` a column `probability_<label>` for each label. For several labels at once the first
// two are JSON arrays of the predicted labels and their probabilities.
//
// Rows of CSV get quotes only where they need them. All have their columns in the order of the
// first file. Rows of JSON lines stay as they are, byte for byte, and get the new keys at their
// end. Blank lines are left out.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lathe/apps/lathe/predictor.h"
#include "lathe/core/base/file.h"
#include "lathe/data/datasets/label_set.h"
#include "lathe/data/datasets/text_table.h"

namespace lathe {

class PredictionRows {
 public:
  struct Options {
    LabelKind kind = LabelKind::kSingleLabel;
    std::vector<std::string> names;  // the labels' names
    bool all_scores = false;
    InvalidUtf8 invalid_utf8 = InvalidUtf8::kError;
  };
  // Throws UsageError if the inputs and the output don't all have one format, or if it is not CSV,
  // TSV or JSON lines. Throws InvalidArgument if `output` is a folder. `inputs` must not be empty.
  static void CheckPaths(const std::vector<std::string>& inputs, const std::string& output);

  PredictionRows(const std::vector<std::string>& inputs, std::string output, Options options);

  // Opens the temporary file that becomes the output. `block` is the first one. Throws if a column
  // of it has the name of one that is to be added.
  void Open(const std::string& temporary, const TextTable& block);
  // Writes the rows of the block from `first`, one for each prediction. Rows come in the order of
  // the files, which all have the columns of the first block unless they are JSON lines. Throws as
  // Open does.
  void Write(const TextTable& block, int64_t first, std::span<const Prediction> predictions);
  void Close();

 private:
  using Cells = std::vector<std::pair<std::string, nlohmann::json>>;  // names and values

  Cells CellsOf(const Prediction& prediction) const;
  // Returns a prediction from which CellsOf makes all columns.
  Prediction AnyPrediction() const;
  // Throws if a column of the block has the name of one that is to be added.
  void CheckNames(const TextTable& block) const;
  std::string JsonRow(const TextTable& block, int64_t row, const Cells& added);
  // Returns this line of an input, without its end. Lines are asked for in their order.
  std::string RawLine(const std::string& path, int64_t line);

  std::string output_, format_;
  Options options_;
  std::vector<std::string> columns_;  // the inputs' columns, in the order of the first input
  std::optional<FileWriter> writer_;
  std::ifstream raw_;     // an input, for JSON lines
  std::string raw_path_;  // its name
  int64_t line_ = 0;      // the last line that was read from it
};

}  // namespace lathe
