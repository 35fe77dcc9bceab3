// Reads rows of a split again, since nothing keeps their texts after tokenizing.
//
//   RowSource source{.split = ValidationSplit(options), .options = options, .columns = columns};
//   std::map<int64_t, SourceRow> rows = ReadSourceRows(source, {3, 17});
//   rows.at(17).line;
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lathe/data/datasets/label_set.h"
#include "lathe/data/datasets/text_table.h"
#include "lathe/train/rows/data_split.h"
#include "lathe/train/rows/validation_rule.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// What decides which rows of a split's files are the samples of its dataset. So no number has to be
// kept for each sample.
struct RowSource {
  DataSplit split = {};
  FinetuneArguments options = {};  // with the names of columns in place of numbers
  TextColumns columns = {};        // behind the joining of columns
  LabelKind kind = LabelKind::kSingleLabel;
  std::optional<ValidationRule> rule = {};  // if the split's files are divided
};

// A row of a file: its line, from 1, and its one or two texts.
struct SourceRow {
  size_t file = 0;  // its place in RowSource::split.files
  int64_t line = 0;
  int64_t element = 0;  // its number in an array in JSON, from 1; 0 in other files
  std::vector<std::string> texts;
};

// Returns the rows of these samples of the split's dataset, by their numbers. Reads the files from
// their beginning, as the loader did, and no further than it must. Throws as ForEachBlock does,
// DataLoss if there are fewer rows than before, and InvalidArgument for a pipe, which can't be read
// twice.
std::map<int64_t, SourceRow> ReadSourceRows(const RowSource& source, std::vector<int64_t> samples);

}  // namespace lathe
