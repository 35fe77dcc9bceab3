// TrainedColumns: which columns a training has read. finetune keeps them beside the model, so that
// `lathe evaluate`, `lathe predict` and finetune without a training read the same ones.
//
//   WriteFileAtomically(dir + "/" + kTrainedColumns, FormatTrainedColumns(columns));
//   if (const auto trained = ReadTrainedColumns(dir))
//     note = TakeTrainedColumns(*trained, table, {.label = false}, &options);
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lathe/data/datasets/text_table.h"
#include "lathe/train/rows/data_split.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// The file's name, in the folder of a model or a checkpoint. Transformers doesn't look at it.
inline constexpr char kTrainedColumns[] = "data_columns.json";

struct TrainedColumns {
  std::vector<std::string> texts;  // one, or a pair; if they are joined, two or more
  bool joined = false;             // they make one text together
  std::string delimiter = " ";     // then it stands between them
  std::string label;
  // The numbers, from 1, of those columns that were given by number. So a file without a row of
  // names is read as the training's file was.
  std::map<std::string, size_t> numbers = {};

  bool operator==(const TrainedColumns&) const = default;
};

// Returns the columns of a run. `given` has its options as they were given. `named` has them with
// names in place of numbers (column_numbers.h). `texts` are the columns that hold the texts once
// columns are joined.
TrainedColumns ColumnsOfRun(const DataArguments& given, const DataArguments& named,
                            const TextColumns& texts);

// Returns the contents of the file.
std::string FormatTrainedColumns(const TrainedColumns& columns);
// Reads them. Throws InvalidArgument, which begins with `where`, for anything that isn't of this
// form. Keys that it doesn't know have no effect.
TrainedColumns ParseTrainedColumns(const std::string& text, const std::string& where);
// Returns the columns that the model's folder remembers. Returns nullopt if it has no such file.
// Throws as ReadFile and ParseTrainedColumns do.
std::optional<TrainedColumns> ReadTrainedColumns(const std::string& folder);

// The columns that a command's options don't name. TakeTrainedColumns sets these.
struct OpenColumns {
  bool texts = true, delimiter = true, label = true;
  bool any() const { return texts || label; }
  static OpenColumns None() { return {.texts = false, .delimiter = false, .label = false}; }
};

// Sets the open columns of `options` to those of the training. The other columns must have names in
// place of numbers (column_numbers.h). It reads only the names of the table's columns. It finds
// each column by its name, or else by its number if the training was given one. If the file lacks
// the training's texts, it sets those that ChooseTextColumns takes, and throws as that does. If the
// file lacks the label, the label of the options stays.
//
// Returns a note for people, in one line, that says which columns are read. The note leaves out
// texts that would be read without the training, too, and a label that is called "label". So it may
// be empty.
std::string TakeTrainedColumns(const TrainedColumns& trained, const TextTable& table,
                               const OpenColumns& open, DataArguments* options);

// Does the same with the columns that the model's folder remembers, for the split's first file. It
// sets nothing if the folder remembers none, or if the file can be read only once; then the note
// says so. An empty `folder` stands for no model. Reads nothing if no column is open. Throws as
// ReadTrainedColumns and BeginningOf (column_numbers.h) do.
std::string TakeColumnsOfModel(const std::string& folder, const DataSplit& split,
                               const OpenColumns& open, FinetuneArguments* options);

}  // namespace lathe
