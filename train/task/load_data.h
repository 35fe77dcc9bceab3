// DataLoading: from the files of a task's data to its tokenized datasets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lathe/data/datasets/text_table.h"
#include "lathe/models/config/config.h"
#include "lathe/train/rows/data_split.h"
#include "lathe/train/rows/row_filter.h"
#include "lathe/train/rows/text_marks.h"
#include "lathe/train/rows/trained_columns.h"
#include "lathe/train/rows/validation_rule.h"
#include "lathe/train/support/training_arguments.h"
#include "lathe/train/task/cached_dataset.h"
#include "lathe/train/task/task.h"

namespace lathe {

// Loads the data of a task, split by split. The first split that the run uses decides what the
// labels mean and which columns are texts. Its rows and those of the others lie in memory or in the
// dataset cache.
class DataLoading {
 public:
  // Keeps references to `task` and `config`. The open columns become those of the training that the
  // folder model_name_or_path remembers; a training has none. `load_tokenizer` sets task.tokenizer
  // and task.max_length if they aren't set.
  DataLoading(Task& task, const PretrainedConfig& config, const FinetuneArguments& options,
              const OpenColumns& open, std::function<void()> load_tokenizer);

  // Reads the rows that lie in memory, or opens the cache's file, and sets task.labels.
  void Read();
  // Tokenizes all rows, and sets task.text_columns and task.validation_rows. Adds to
  // task.column_notes, as Read does. Needs task.tokenizer and task.model.
  void Tokenize();

 private:
  struct Part {
    DataSplit split;
    TaskData* data = nullptr;
    std::string folder = {};             // of the cache; "": the rows lie in memory
    std::vector<TextTable> tables = {};  // the rows in memory, by file
    std::unique_ptr<CachedDataset> cache = {};
    TextMarks marks = {};
  };

  std::vector<Part*> Parts() { return {&train_, &validation_, &test_}; }
  Part& First();  // of those that the run uses
  void NameColumns();
  void OpenCache(Part& part, const KnownAboutRows& known);
  // Collects the labels of validation data that complete those of the training data.
  void CollectValidationLabels();
  LabelSet DecideTheLabels();
  void AddNoteOnLabels();
  void DivideTrainingRows();
  void TokenizePart(Part& part);
  TokenizedDataset TokenizeTables(Part& part, RowFilter& filter);
  void CutToTrainingTexts();
  void AddNotesOnTexts();

  Task& task_;
  const PretrainedConfig& config_;
  FinetuneArguments given_;    // as its caller has them, but for the open columns
  FinetuneArguments options_;  // with names of columns in place of numbers
  const OpenColumns open_;
  std::function<void()> load_tokenizer_;
  Part train_, validation_, test_;
  std::optional<ValidationRule> rule_;  // if the training data are divided
  // If there are training and validation data in files of their own.
  std::optional<DistinctLabels> validation_labels_;
};

}  // namespace lathe
