// The columns of texts that options name: one, a pair, or several that make one text together.
#pragma once

#include <string>
#include <vector>

#include "lathe/data/datasets/text_table.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Throws if the options name a column twice, name more than two text_columns, or give both
// text_columns and text_column_names. Throws if the delimiter is not UTF-8. Columns may be given by
// number, so this needs no file.
void CheckTextColumns(const DataArguments& options);

// Returns the columns to join in each table of the run (JoinColumns), and what goes between them.
JoinedColumns ColumnsToJoin(const DataArguments& options);

// Returns the columns that hold the texts once columns are joined: none if the file decides.
std::vector<std::string> NamedTextColumns(const DataArguments& options);

// Returns a note, in one line, if a pair of columns was taken for the texts only because it stands
// first in the file. Returns "" if the options name columns, if there is one column of texts, and
// for sentence1 and sentence2.
std::string NoteOnTextColumns(const TextColumns& columns, const DataArguments& options);

}  // namespace lathe
