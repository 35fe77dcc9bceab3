#include "lathe/train/rows/data_files.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "lathe/core/base/error.h"
#include "lathe/train/rows/text_columns.h"

namespace lathe {
namespace {

using Strings = std::vector<std::string>;

bool Exists(const std::string& path) {
  std::error_code code;
  return std::filesystem::exists(path, code);
}

Strings Matches(const std::string& pattern, const std::string& option) {
  glob_t found = {};
  const int code = glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  Strings paths;
  if (code == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (paths.empty()) {
    throw NotFound(option + " " + pattern + ": no file matches this pattern",
                   "check the folder and the extension, such as data/*.csv");
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Returns the comma behind the first of several names. The longest path that is there is one name,
// because it may have commas of its own. Returns npos if there is no comma.
size_t FindSeparator(const std::string& names) {
  for (size_t end = names.rfind(','); end != std::string::npos && end > 0;
       end = names.rfind(',', end - 1)) {
    if (Exists(names.substr(0, end))) return end;
  }
  return names.find(',');
}

void AddFiles(const std::string& name, const std::string& option, Strings& files) {
  if (name.empty()) {
    throw InvalidArgument(option + " has an empty name of a file",
                          "write several files with one comma between them: a.csv,b.csv");
  }
  if (Exists(name)) {
    files.push_back(name);
  } else if (const size_t comma = FindSeparator(name); comma != std::string::npos) {
    AddFiles(name.substr(0, comma), option, files);
    AddFiles(name.substr(comma + 1), option, files);
  } else if (name.find_first_of("*?[") != std::string::npos) {
    const Strings matches = Matches(name, option);
    files.insert(files.end(), matches.begin(), matches.end());
  } else {
    files.push_back(name);
  }
}

std::string Joined(const Strings& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

}  // namespace

Strings DataFiles(const Strings& names, const std::string& option) {
  Strings files;
  for (const std::string& name : names) AddFiles(name, option, files);
  return files;
}

std::string NameOfFiles(const Strings& files) {
  if (files.size() == 1) return files[0];
  const size_t more = files.size() - 1;
  return files.empty()
             ? ""
             : files[0] + " and " + std::to_string(more) + " more file" + (more > 1 ? "s" : "");
}

TextColumns ChooseColumns(const std::vector<TextTable>& tables, const FinetuneArguments& options) {
  const TextColumns columns = ChooseTextColumns(tables.front(), NamedTextColumns(options),
                                                options.label_column, options.sample_weight_column);
  Strings names = {columns.first};
  if (!columns.second.empty()) names.push_back(columns.second);
  for (size_t i = 1; i < tables.size(); ++i)
    ChooseTextColumns(tables[i], names, options.label_column);
  return columns;
}

void CheckSameColumns(const TextTable& first, const TextTable& table, const std::string& option) {
  const auto is_json = [](const TextTable& t) { return TableFormat(t.path).starts_with(".json"); };
  if (is_json(first) || is_json(table)) return;
  const auto sorted = [](Strings names) {
    std::sort(names.begin(), names.end());
    return names;
  };
  if (sorted(first.names) == sorted(table.names)) return;
  throw InvalidArgument(table.path + ": its columns are " + Joined(table.names) + " but those of " +
                            first.path + " are " + Joined(first.names),
                        "all files of " + option + " must have the same columns");
}

}  // namespace lathe
