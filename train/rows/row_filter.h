// RowFilter: which rows of a split's files a run uses.
#pragma once

#include <absl/container/flat_hash_set.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lathe/data/datasets/label_set.h"
#include "lathe/data/datasets/text_table.h"
#include "lathe/train/rows/data_split.h"
#include "lathe/train/rows/validation_rule.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Moves the rows that `taken` marks out of a table, and returns them.
TextTable TakeRows(TextTable& table, const std::vector<bool>& taken);

// Returns a hash of 64 bits of a row's texts. Two rows of different texts have the same hash with a
// probability of 2^-64.
uint64_t HashOfTexts(std::string_view first, std::string_view second);

// Takes the rows of a split in their order, block by block. With --validation_split it first keeps
// only those rows of the training files that train, or only those that validate. Then it drops
// duplicates (--drop_duplicates), and then all rows behind the first max_rows. Labels are equal if
// they mean the same: several labels in any order, and numbers such as 1 and 1.0 that are scores.
// If it drops duplicates, it remembers 8 bytes for each row that it has kept.
class RowFilter {
 public:
  // Keeps references to `options` and `rule`. `rule` may be null if the rows are divided already. A
  // split with all rows of its files has no use for it. `kind` is that of the labels.
  RowFilter(const DataSplit& split, const FinetuneArguments& options, LabelKind kind,
            const ValidationRule* rule)
      : split_(split), options_(options), kind_(kind), rule_(rule) {}

  void Apply(TextTable& rows, const TextColumns& columns);
  int64_t num_dropped() const { return num_dropped_; }  // duplicates

 private:
  // Ends as soon as it has kept as many rows as wanted.
  void DropDuplicates(TextTable& rows, const TextColumns& columns, int64_t wanted);

  DataSplit split_;
  const FinetuneArguments& options_;
  LabelKind kind_;
  const ValidationRule* rule_;
  absl::flat_hash_set<uint64_t> seen_;
  int64_t num_kept_ = 0, num_dropped_ = 0;
};

// Returns the note for people about dropped rows; "" if there are none.
std::string NoteOnDuplicates(const DataSplit& split, int64_t num_dropped);

}  // namespace lathe
