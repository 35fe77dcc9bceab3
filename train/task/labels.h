// What the labels of the data mean.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lathe/data/datasets/label_set.h"
#include "lathe/data/datasets/text_table.h"
#include "lathe/models/pretrained.h"
#include "lathe/train/rows/data_files.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// The distinct labels of a split's files, in the order in which they come. It takes the rows block
// by block and keeps none of them. Once it has a million labels, it keeps no further number with a
// decimal point. Such labels are scores, and it doesn't matter which ones they are.
class DistinctLabels {
 public:
  explicit DistinctLabels(std::string column) : column_(std::move(column)) {}
  // Throws as TextTable::column does.
  void Add(const TextTable& rows);

  std::string path() const { return NameOfFiles(paths_); }
  const std::string& column() const { return column_; }
  const std::vector<std::string>& labels() const { return labels_; }
  // How often label i occurs, and NameOfRow of its first row.
  int64_t count(size_t i) const { return counts_[i]; }
  std::string Where(size_t i) const {
    return NameOfRow(paths_[first_files_[i]], first_lines_[i], first_elements_[i]);
  }

 private:
  std::vector<std::string> paths_;
  std::string column_;
  std::vector<std::string> labels_;
  std::vector<int64_t> counts_, first_lines_, first_elements_;
  std::vector<size_t> first_files_;
  std::unordered_map<std::string, size_t> places_;
  std::optional<size_t> number_;  // the place of a number with a point
};

// Returns the labels of `validation` that `labels` lacks and that could belong to it. A name is no
// label among numbers, nor a number among names, because it is a slip. Nor is a score.
std::vector<std::string> LabelsOfValidationAlone(const LabelSet& labels,
                                                 const DistinctLabels& validation);

// Returns the set of labels of this kind with these names. A regression ignores the names.
LabelSet MakeLabelSet(LabelKind kind, std::vector<std::string> names);

// Decides what the labels of these files mean, in the order of the model's outputs. `train` and
// `validation` may be null, as for a file without labels. With training data its labels count,
// followed by those that only the validation data have, as in run_classification. They come in the
// config's order if they are the same names, else in that of the GLUE task that the options name.
// Without training data the config's labels count. Throws if there are more labels than
// --num_labels.
LabelSet DecideLabels(const DistinctLabels* train, const DistinctLabels* validation,
                      const PretrainedConfig& config, const FinetuneArguments& options);

}  // namespace lathe
