// Columns that are given by their numbers: --text_columns 1,3 or --text_column_names 2,4,5.
#pragma once

#include <optional>

#include "lathe/data/datasets/text_table.h"
#include "lathe/train/rows/data_split.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Returns the options with the names of columns in place of numbers. Columns count from 1, in the
// order of the split's first file. A column whose name is the number wins. Reads the beginning of
// that file, but only if there is a number. Throws for a number that is too large.
FinetuneArguments WithColumnNames(FinetuneArguments options, const DataSplit& split);
// The same for a file whose beginning was read already.
FinetuneArguments WithColumnNames(FinetuneArguments options, const TextTable& beginning);

// Returns the names of the columns of the split's first file, with no rows that matter. Returns
// nullopt if it is a pipe, which can't be read twice. Throws as TextTableReader does.
std::optional<TextTable> BeginningOf(const DataSplit& split, const FinetuneArguments& options);

}  // namespace lathe
