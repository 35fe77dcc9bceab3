// Reading of data files, with errors whose hints name flags.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/data/datasets/text_table.h"
#include "lathe/train/support/training_arguments.h"
#include "lathe/train/task/data_split.h"

namespace lathe {

// Returns what to do with text that is not UTF-8.
InvalidUtf8 OnInvalidUtf8(const FinetuneArguments& options);

// Returns an error in a data file with a hint that names the flag to change. `flag` named the file.
Error WithFlagHint(const Error& e, const char* flag);

// Throws if the path leads to a folder.
void CheckNoFolder(const std::string& path, const char* flag);

// Reads the table of a split, or its first `max_rows` rows. Returns nullopt if it is not wanted.
std::optional<TextTable> ReadTable(const DataSplit& split, std::optional<int64_t> max_rows,
                                   const FinetuneArguments& options);

// Removes all rows behind the first `max_rows`.
void CutRows(TextTable& table, int64_t max_rows);

}  // namespace lathe
