#include "lathe/train/task/read_table.h"

#include <filesystem>

namespace lathe {

InvalidUtf8 OnInvalidUtf8(const FinetuneArguments& options) {
  return options.invalid_utf8 == "replace" ? InvalidUtf8::kReplace : InvalidUtf8::kError;
}

Error WithFlagHint(const Error& e, const char* flag) {
  if (e.detail<FoundInvalidUtf8>() != nullptr)
    return e.WithHint(e.hint() + ": --invalid_utf8 replace");
  return e.hint().empty() ? e.WithHint(std::string("check ") + flag) : e;
}

void CheckNoFolder(const std::string& path, const char* flag) {
  if (!std::filesystem::is_directory(path)) return;
  throw InvalidArgument(path + ": is a folder but " + flag + " must be a file",
                        "give the path of a .csv, .tsv, .json or .jsonl file");
}

void CutRows(TextTable& table, int64_t max_rows) {
  if (max_rows >= table.rows()) return;
  for (auto& column : table.columns) column.resize(static_cast<size_t>(max_rows));
  table.lines.resize(static_cast<size_t>(max_rows));
}

std::optional<TextTable> ReadTable(const DataSplit& split, std::optional<int64_t> max_rows,
                                   const FinetuneArguments& options) {
  if (!split.wanted) return std::nullopt;
  CheckNoFolder(split.path, split.flag);
  try {
    TextTable table = ReadTextTable(split.path, OnInvalidUtf8(options));
    if (max_rows) CutRows(table, *max_rows);
    return table;
  } catch (const Error& e) {
    throw WithFlagHint(e, split.flag);
  }
}

}  // namespace lathe
