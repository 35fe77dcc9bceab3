#include "lathe/train/rows/text_columns.h"

#include <algorithm>

#include "lathe/core/base/error.h"
#include "lathe/data/utf8.h"

namespace lathe {
namespace {

void CheckNoneTwice(const std::vector<std::string>& names, const std::string& option) {
  for (auto name = names.begin(); name != names.end(); ++name) {
    if (std::find(names.begin(), name, *name) == name) continue;
    throw InvalidArgument(option + " names \"" + *name + "\" twice", "name each column once");
  }
}

}  // namespace

void CheckTextColumns(const DataArguments& options) {
  if (options.text_columns.size() > 2) {
    throw InvalidArgument(
        OptionName("text_columns") + " takes one or two columns",
        "pass " + OptionName("text_column_names") + " to join more columns to one text");
  }
  CheckNoneTwice(options.text_columns, OptionName("text_columns"));
  CheckNoneTwice(options.text_column_names, OptionName("text_column_names"));
  if (!options.text_columns.empty() && !options.text_column_names.empty()) {
    throw InvalidArgument(OptionName("text_column_names") + " and " + OptionName("text_columns") +
                              " contradict each other",
                          "leave one of them out");
  }
  if (ValidateUtf8(options.text_column_delimiter) != std::string::npos) {
    throw InvalidArgument(OptionName("text_column_delimiter") + " is not UTF-8",
                          "pass text, or leave it out for a space");
  }
}

JoinedColumns ColumnsToJoin(const DataArguments& options) {
  return {.names = options.text_column_names, .delimiter = options.text_column_delimiter};
}

std::vector<std::string> NamedTextColumns(const DataArguments& options) {
  if (options.text_column_names.empty()) return options.text_columns;
  return {ColumnsToJoin(options).Name()};
}

std::string NoteOnTextColumns(const TextColumns& columns, const DataArguments& options) {
  if (columns.second.empty() || !NamedTextColumns(options).empty()) return "";
  if (columns.first == "sentence1" && columns.second == "sentence2") return "";
  return "the texts are pairs of \"" + columns.first + "\" and \"" + columns.second +
         "\", the first columns; if the model was trained on others, name them with " +
         OptionName("text_columns");
}

}  // namespace lathe
