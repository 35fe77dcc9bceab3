// The columns of texts that options name: one, a pair, or several that make one text together.
#pragma once

#include <string>
#include <vector>

#include "lathe/data/datasets/text_table.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Throws if the options name a column twice, more than two for a pair, or pairs and joined columns
// at once, or if the delimiter is not UTF-8. Columns may still be numbers.
void CheckTextColumns(const DataArguments& options);

// Returns the columns to join in each table of the run (JoinColumns), and what goes between them.
JoinedColumns ColumnsToJoin(const DataArguments& options);

// Returns the columns that hold the texts once columns are joined: none if the file decides.
std::vector<std::string> NamedTextColumns(const DataArguments& options);

// Returns a note, without a line break, on a pair of columns that only their places made texts.
// Returns "" if the options name columns, for a lone column, and for sentence1 and sentence2.
std::string NoteOnTextColumns(const TextColumns& columns, const DataArguments& options);

}  // namespace lathe
