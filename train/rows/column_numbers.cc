#include "lathe/train/rows/column_numbers.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/data/datasets/text_table_reader.h"
#include "lathe/train/rows/read_table.h"

namespace lathe {
namespace {

std::optional<size_t> NumberIn(const std::string& text) {
  size_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

void Replace(std::string& name, const std::string& option, const TextTable& table) {
  const std::optional<size_t> number = NumberIn(name);
  if (!number || table.has(name)) return;
  if (*number == 0 || *number > table.names.size()) {
    throw InvalidArgument(table.path + ": there is no column " + name + "; it has " +
                              std::to_string(table.names.size()),
                          "columns of " + option + " count from 1; or give their names");
  }
  name = table.names[*number - 1];
}

// Replaces numbers in a list of different names.
void ReplaceAll(std::vector<std::string>& names, const std::string& option,
                const TextTable& table) {
  for (std::string& name : names) Replace(name, option, table);
  for (auto name = names.begin(); name != names.end(); ++name) {
    if (std::find(names.begin(), name, *name) == name) continue;
    throw InvalidArgument(table.path + ": " + option + " names \"" + *name +
                              "\" twice, by its name and by its number",
                          "name each column once");
  }
}

}  // namespace

std::optional<TextTable> BeginningOf(const DataSplit& split, const FinetuneArguments& options) {
  constexpr int64_t kBytes = 1 << 16;
  const std::string& path = split.files.at(0);
  CheckNoFolder(path, split.option);
  std::error_code code;
  if (std::filesystem::exists(path, code) && !std::filesystem::is_regular_file(path, code))
    return std::nullopt;
  try {
    return TextTableReader(path, OnInvalidUtf8(options), kBytes).Next();
  } catch (const Error& e) {
    throw WithFlagHint(e, split.option);
  }
}

FinetuneArguments WithColumnNames(FinetuneArguments options, const DataSplit& split) {
  const auto is_number = [](const std::string& name) { return NumberIn(name).has_value(); };
  if (!is_number(options.label_column) && !is_number(options.sample_weight_column) &&
      std::ranges::none_of(options.text_columns, is_number) &&
      std::ranges::none_of(options.text_column_names, is_number)) {
    return options;
  }
  const std::optional<TextTable> table = BeginningOf(split, options);
  if (!table) {
    throw InvalidArgument(
        split.files[0] + ": columns have numbers only in a file that can be read twice",
        "give the columns by name");
  }
  return WithColumnNames(std::move(options), *table);
}

FinetuneArguments WithColumnNames(FinetuneArguments options, const TextTable& beginning) {
  Replace(options.label_column, OptionName("label_column"), beginning);
  Replace(options.sample_weight_column, OptionName("sample_weight_column"), beginning);
  ReplaceAll(options.text_columns, OptionName("text_columns"), beginning);
  ReplaceAll(options.text_column_names, OptionName("text_column_names"), beginning);
  return options;
}

}  // namespace lathe
