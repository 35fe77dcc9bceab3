// Reading of data files, with errors whose hints name options.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/data/datasets/text_table.h"
#include "lathe/train/rows/data_split.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Returns what to do with text that is not UTF-8.
InvalidUtf8 OnInvalidUtf8(const FinetuneArguments& options);

// Returns an error in a data file with a hint that names the option to change. `option` named the
// file, and is written as users write it (OptionName).
Error WithFlagHint(const Error& e, const std::string& option);

// Throws if the path leads to a folder.
void CheckNoFolder(const std::string& path, const std::string& option);

// Returns the rows of a split, a table for each file, with the columns joined that the options
// join. Returns none if it is not wanted. Throws if a file has other columns than the first
// (CheckSameColumns).
std::vector<TextTable> ReadTables(const DataSplit& split, const FinetuneArguments& options);

// Calls `use` for each block of rows of the files, in their order. Throws as ReadTables does.
void ForEachBlock(const DataSplit& split, const FinetuneArguments& options,
                  const std::function<void(TextTable& rows, size_t file)>& use);
// The same, but reads no further once `use` returns false.
void ForEachBlockWhile(const DataSplit& split, const FinetuneArguments& options,
                       const std::function<bool(TextTable& rows, size_t file)>& use);

// Removes all rows behind the first `max_rows`.
void CutRows(TextTable& table, int64_t max_rows);
void CutRows(std::vector<TextTable>& tables, std::optional<int64_t> max_rows);

}  // namespace lathe
