// A split of the data, such as the training data: its files, and what a run does with its rows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lathe/train/support/training_arguments.h"

namespace lathe {

struct DataSplit {
  // kTraining and kValidating: the files are those of the training data, which
  // validation_split divides.
  enum class Rows { kAll, kTraining, kValidating };
  const char* name = "";    // "training", as in "the training data"
  const char* prefix = "";  // of names of files in the dataset cache
  std::string option = "";  // that names the files, as OptionName writes it
  std::vector<std::string> files = {};
  Rows rows = Rows::kAll;                // that belong to it
  double share = 0;                      // of the files' rows that validate, if they are divided
  bool drops_duplicates = false;         // of texts and label
  bool wanted = false;                   // the run uses it
  bool labelled = true;                  // the run needs its labels
  std::optional<int64_t> max_rows = {};  // that are used
  std::string weight_column = "";        // says how much each row counts; "": all count alike
};

// Return the splits of a run, with the files that they name (data_files.h).
DataSplit TrainingSplit(const FinetuneArguments& options);
DataSplit ValidationSplit(const FinetuneArguments& options);
DataSplit TestSplit(const FinetuneArguments& options);

// Returns the name of a split's data for people: its files, and whether they are divided.
std::string NameForPeople(const DataSplit& split);

}  // namespace lathe
