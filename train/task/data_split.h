// A split of the data, such as the training data: its files, and what a run does with its rows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lathe/train/support/training_arguments.h"

namespace lathe {

struct DataSplit {
  const char* name = "";    // "training", as in "the training data"
  const char* prefix = "";  // of names of files in the dataset cache
  const char* flag = "";    // that names the files
  std::vector<std::string> files;
  bool wanted = false;              // the run uses it
  bool labelled = true;             // the run needs its labels
  std::optional<int64_t> max_rows;  // that are used
};

// Return the splits of a run, with the files that they name (data_files.h).
DataSplit TrainingSplit(const FinetuneArguments& options);
DataSplit ValidationSplit(const FinetuneArguments& options);
DataSplit TestSplit(const FinetuneArguments& options);

}  // namespace lathe
