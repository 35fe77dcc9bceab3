#include "lathe/train/rows/read_table.h"

#include <filesystem>

#include "lathe/data/datasets/text_table_reader.h"
#include "lathe/train/rows/data_files.h"
#include "lathe/train/rows/text_columns.h"

namespace lathe {

InvalidUtf8 OnInvalidUtf8(const FinetuneArguments& options) {
  return options.invalid_utf8 == "replace" ? InvalidUtf8::kReplace : InvalidUtf8::kError;
}

Error WithFlagHint(const Error& e, const std::string& option) {
  if (e.detail<FoundInvalidUtf8>() != nullptr)
    return e.WithHint(e.hint() + ": " + OptionName("invalid_utf8") + " replace");
  return e.hint().empty() ? e.WithHint("check " + option) : e;
}

void CheckNoFolder(const std::string& path, const std::string& option) {
  if (!std::filesystem::is_directory(path)) return;
  throw InvalidArgument(
      path + ": is a folder but " + option + " must be a file",
      "give the path of a .csv, .tsv, .json or .jsonl file, or a pattern such as " + path +
          "/*.csv");
}

void CutRows(TextTable& table, int64_t max_rows) {
  if (max_rows >= table.rows()) return;
  for (auto& column : table.columns) column.resize(static_cast<size_t>(max_rows));
  table.lines.resize(static_cast<size_t>(max_rows));
  if (!table.elements.empty()) table.elements.resize(static_cast<size_t>(max_rows));
}

void CutRows(std::vector<TextTable>& tables, std::optional<int64_t> max_rows) {
  if (!max_rows) return;
  int64_t left = *max_rows;
  for (TextTable& table : tables) {
    CutRows(table, left);
    left -= table.rows();
  }
}

std::vector<TextTable> ReadTables(const DataSplit& split, const FinetuneArguments& options) {
  std::vector<TextTable> tables;
  if (!split.wanted) return tables;
  for (const std::string& file : split.files) CheckNoFolder(file, split.option);
  for (const std::string& file : split.files) {
    try {
      tables.push_back(ReadTextTable(file, OnInvalidUtf8(options)));
    } catch (const Error& e) {
      throw WithFlagHint(e, split.option);
    }
    CheckSameColumns(tables.front(), tables.back(), split.option);
  }
  for (TextTable& table : tables) JoinColumns(table, ColumnsToJoin(options));
  return tables;
}

void ForEachBlock(const DataSplit& split, const FinetuneArguments& options,
                  const std::function<void(TextTable& rows, size_t file)>& use) {
  ForEachBlockWhile(split, options, [&](TextTable& rows, size_t file) {
    use(rows, file);
    return true;
  });
}

void ForEachBlockWhile(const DataSplit& split, const FinetuneArguments& options,
                       const std::function<bool(TextTable& rows, size_t file)>& use) {
  const JoinedColumns joined = ColumnsToJoin(options);
  TextTable first;  // its columns, without rows
  for (size_t file = 0; file < split.files.size(); ++file) {
    std::optional<TextTableReader> reader;
    for (;;) {
      TextTable rows;
      try {
        if (!reader) reader.emplace(split.files[file], OnInvalidUtf8(options));
        rows = reader->Next();
      } catch (const Error& e) {
        throw WithFlagHint(e, split.option);
      }
      if (rows.rows() == 0) break;
      if (first.names.empty()) {
        first.path = rows.path;
        first.names = rows.names;
      }
      CheckSameColumns(first, rows, split.option);
      JoinColumns(rows, joined);
      if (!use(rows, file)) return;
    }
  }
}

}  // namespace lathe
