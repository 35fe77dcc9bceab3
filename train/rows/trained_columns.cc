#include "lathe/train/rows/trained_columns.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/files/regular_file.h"
#include "lathe/core/json/json_nesting.h"
#include "lathe/core/json/json_text.h"
#include "lathe/core/text/terminal_text.h"
#include "lathe/train/rows/column_numbers.h"
#include "lathe/train/rows/text_columns.h"

namespace lathe {
namespace {

using Json = nlohmann::json;
using Strings = std::vector<std::string>;

constexpr char kTexts[] = "text_columns", kJoined[] = "text_column_names",
               kDelimiter[] = "text_column_delimiter", kLabel[] = "label_column",
               kNumbers[] = "column_numbers";

[[noreturn]] void Refuse(const std::string& where, const std::string& what) {
  throw InvalidArgument(where + ": " + what,
                        "copy the model again, or remove this file and name the columns yourself");
}

std::string StringAt(const Json& json, const char* key, const std::string& where) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string())
    Refuse(where, std::string("\"") + key + "\" must be a text");
  return found->get<std::string>();
}

Strings StringsAt(const Json& json, const char* key, size_t least, size_t most,
                  const std::string& where) {
  const Json& list = json.at(key);
  const auto is_string = [](const Json& name) { return name.is_string(); };
  if (!list.is_array() || list.size() < least || list.size() > most ||
      !std::all_of(list.begin(), list.end(), is_string)) {
    Refuse(where, std::string("\"") + key + "\" must be a list of " + std::to_string(least) +
                      (most < SIZE_MAX ? " or " + std::to_string(most) : " or more") + " names");
  }
  return list.get<Strings>();
}

std::map<std::string, size_t> NumbersAt(const Json& json, const std::string& where) {
  std::map<std::string, size_t> numbers;
  const auto found = json.find(kNumbers);
  if (found == json.end()) return numbers;
  if (!found->is_object())
    Refuse(where, std::string("\"") + kNumbers + "\" must be an object of names and numbers");
  for (const auto& [name, number] : found->items()) {
    if (!number.is_number_unsigned() || number.get<uint64_t>() == 0)
      Refuse(where, std::string("\"") + kNumbers + "\" must have whole numbers from 1");
    numbers[name] = number.get<size_t>();
  }
  return numbers;
}

// Columns of the training, found in a table.
struct Found {
  Strings names;  // in the table
  Strings shown;  // for people: "review" in quotes, or column 2
  bool by_name = false;
};

std::string Quoted(const std::string& name) { return "\"" + name + "\""; }

// Returns the table's columns of these names, or of the numbers that the training had for all of
// them. Returns nullopt if neither are there.
std::optional<Found> Find(const Strings& names, const TrainedColumns& trained,
                          const TextTable& table) {
  Found by_name, by_number;
  for (const std::string& name : names) {
    if (table.has(name)) {
      by_name.names.push_back(name);
      by_name.shown.push_back(Quoted(name));
    }
    const auto number = trained.numbers.find(name);
    if (number == trained.numbers.end() || number->second > table.names.size()) continue;
    by_number.names.push_back(table.names[number->second - 1]);
    by_number.shown.push_back("column " + std::to_string(number->second));
  }
  by_name.by_name = true;
  if (by_name.names.size() == names.size()) return by_name;
  if (by_number.names.size() == names.size()) return by_number;
  return std::nullopt;
}

// Returns the training's columns as a message shows them: by number if they were given so.
Strings Shown(const Strings& names, const TrainedColumns& trained) {
  Strings shown;
  for (const std::string& name : names) {
    const auto number = trained.numbers.find(name);
    shown.push_back(number == trained.numbers.end() ? Quoted(name)
                                                    : "column " + std::to_string(number->second));
  }
  return shown;
}

std::string List(const Strings& shown) {
  std::string out = shown.at(0);
  for (size_t i = 1; i < shown.size(); ++i)
    out += (i + 1 < shown.size() ? ", " : " and ") + shown[i];
  return out;
}

std::string TextsAreIn(const Strings& shown, bool joined) {
  if (joined) return "the texts are " + List(shown) + " joined";
  return (shown.size() > 1 ? "the texts are pairs of " : "the texts are in ") + List(shown);
}

// Joins the phrases that are not empty.
std::string And(const std::string& a, const std::string& b) {
  return a + (a.empty() || b.empty() ? "" : ", and ") + b;
}

// Returns true if a file's texts would be read from these columns without the training, too. Then
// nobody needs to know that the training had them.
bool AreUsual(const Found& texts, const TextTable& table, const std::string& label,
              const std::string& weight) {
  try {
    const TextColumns usual = ChooseTextColumns(table, {}, label, weight);
    const Strings names =
        usual.second.empty() ? Strings{usual.first} : Strings{usual.first, usual.second};
    return texts.by_name && texts.names == names;
  } catch (const Error&) {  // the columns that would be read hold no texts
    return false;
  }
}

// The note on the columns, which grows with what is taken and what the file lacks.
struct ColumnNote {
  std::string taken, replaced, options;
  Strings lacking;

  void Lacks(const Strings& columns, const std::string& replacement, const std::string& option) {
    lacking.insert(lacking.end(), columns.begin(), columns.end());
    replaced = And(replaced, replacement);
    options += (options.empty() ? "" : " and ") + option;
  }
  std::string Text(const std::string& path) const {
    std::string text = taken.empty() ? "" : taken + ", as in the training";
    if (!lacking.empty()) {
      text += (text.empty() ? "" : "; ") + path + " lacks " + List(lacking) +
              " of the training data, so " + replaced + "; choose others with " + options;
    }
    text = TerminalText(text);
    std::replace_if(
        text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
    return text;
  }
};

void SetTexts(const Strings& names, const TrainedColumns& trained, const OpenColumns& open,
              DataArguments* options) {
  if (!trained.joined) {
    options->text_columns = names;
    return;
  }
  options->text_column_names = names;
  if (open.delimiter) options->text_column_delimiter = trained.delimiter;
}

}  // namespace

TrainedColumns ColumnsOfRun(const DataArguments& given, const DataArguments& named,
                            const TextColumns& texts) {
  const JoinedColumns join = ColumnsToJoin(named);
  TrainedColumns columns{.texts = {texts.first}, .label = named.label_column};
  if (!texts.second.empty()) columns.texts.push_back(texts.second);
  if (join.names.size() > 1) {
    columns.texts = join.names;
    columns.joined = true;
    columns.delimiter = join.delimiter;
  }
  // A name that differs from what was given has replaced a number.
  const auto add = [&](const std::string& from, const std::string& to) {
    if (from != to) columns.numbers[to] = std::stoul(from);
  };
  for (size_t i = 0; i < given.text_columns.size(); ++i)
    add(given.text_columns[i], named.text_columns.at(i));
  for (size_t i = 0; i < given.text_column_names.size(); ++i)
    add(given.text_column_names[i], named.text_column_names.at(i));
  add(given.label_column, named.label_column);
  return columns;
}

std::string FormatTrainedColumns(const TrainedColumns& columns) {
  nlohmann::ordered_json json = {{columns.joined ? kJoined : kTexts, columns.texts}};
  if (columns.joined) json[kDelimiter] = columns.delimiter;
  json[kLabel] = columns.label;
  if (!columns.numbers.empty()) json[kNumbers] = columns.numbers;
  return DumpJson(json, 2) + "\n";
}

TrainedColumns ParseTrainedColumns(const std::string& text, const std::string& where) {
  CheckJsonNesting(text, where);
  const Json json = ParseJsonOrDiscard(text);
  if (!json.is_object()) Refuse(where, "must be a JSON object of columns");
  TrainedColumns columns;
  columns.joined = json.contains(kJoined);
  if (columns.joined == json.contains(kTexts))
    Refuse(where, std::string("must have either \"") + kTexts + "\" or \"" + kJoined + "\"");
  if (columns.joined) {
    columns.texts = StringsAt(json, kJoined, 2, SIZE_MAX, where);
    columns.delimiter = StringAt(json, kDelimiter, where);
  } else {
    columns.texts = StringsAt(json, kTexts, 1, 2, where);
  }
  columns.label = StringAt(json, kLabel, where);
  columns.numbers = NumbersAt(json, where);
  return columns;
}

std::optional<TrainedColumns> ReadTrainedColumns(const std::string& folder) {
  const std::string path = folder + "/" + kTrainedColumns;
  if (std::error_code code; !std::filesystem::exists(path, code)) return std::nullopt;
  return ParseTrainedColumns(ReadRegularFile(path), path);
}

std::string TakeTrainedColumns(const TrainedColumns& trained, const TextTable& table,
                               const OpenColumns& open, DataArguments* options) {
  const Strings texts = open.texts ? trained.texts : Strings();
  const Strings label = open.label ? Strings{trained.label} : Strings();
  Strings all = texts;
  all.insert(all.end(), label.begin(), label.end());
  std::optional<Found> found_texts = Find(texts, trained, table),
                       found_label = Find(label, trained, table);
  // All of them by name or all by number, if possible. In a file without a row of names, a text may
  // happen to be the label's name.
  if (const std::optional<Found> found = Find(all, trained, table)) {
    const auto split = static_cast<int64_t>(texts.size());
    found_texts = {{found->names.begin(), found->names.begin() + split},
                   {found->shown.begin(), found->shown.begin() + split},
                   found->by_name};
    found_label = {{found->names.begin() + split, found->names.end()},
                   {found->shown.begin() + split, found->shown.end()},
                   found->by_name};
  }
  ColumnNote note;
  std::string label_is_in;
  if (open.label && found_label) {
    options->label_column = found_label->names[0];
    if (trained.label != "label") label_is_in = "the labels are in " + found_label->shown[0];
  }
  if (open.texts && found_texts) {
    SetTexts(found_texts->names, trained, open, options);
    if (trained.joined ||
        !AreUsual(*found_texts, table, options->label_column, options->sample_weight_column))
      note.taken = TextsAreIn(found_texts->shown, trained.joined);
  }
  note.taken = And(note.taken, label_is_in);
  if (open.texts && !found_texts) {
    const TextColumns chosen =
        ChooseTextColumns(table, {}, options->label_column, options->sample_weight_column);
    options->text_columns = {chosen.first};
    if (!chosen.second.empty()) options->text_columns.push_back(chosen.second);
    Strings shown;
    for (const std::string& name : options->text_columns) shown.push_back(Quoted(name));
    note.Lacks(Shown(texts, trained), TextsAreIn(shown, false),
               OptionName(trained.joined ? "text_column_names" : "text_columns"));
  }
  if (open.label && !found_label) {
    note.Lacks(Shown(label, trained), "the labels are in " + Quoted(options->label_column),
               OptionName("label_column"));
  }
  return note.Text(table.path);
}

std::string TakeColumnsOfModel(const std::string& folder, const DataSplit& split,
                               const OpenColumns& open, FinetuneArguments* options) {
  if (!open.any() || folder.empty()) return "";
  const std::optional<TrainedColumns> trained = ReadTrainedColumns(folder);
  if (!trained) return "";
  const std::optional<TextTable> beginning = BeginningOf(split, *options);
  if (beginning) return TakeTrainedColumns(*trained, *beginning, open, options);
  return split.files.at(0) +
         " can be read only once, so the columns of the training are not sought in it";
}

}  // namespace lathe
