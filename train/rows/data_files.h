// The files that options such as train_file name.
#pragma once

#include <string>
#include <vector>

#include "lathe/data/datasets/text_table.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Returns the files that an option names, in this order. `option` is its name for errors. Each name
// may be a path, a pattern of the shell such as data/*.csv, or several of them with commas between
// them. The matches of a pattern are sorted by their bytes. A file of just this name is that file,
// whatever is in its name, and so is one before a comma: the longest such name counts. Throws for a
// pattern without a match, and for an empty name.
std::vector<std::string> DataFiles(const std::vector<std::string>& names,
                                   const std::string& option);

// Returns a name of several files for people: "a.csv and 2 more files".
std::string NameOfFiles(const std::vector<std::string>& files);

// Returns the columns of texts that all files have: ChooseTextColumns of the first, which the
// others must have, too. There must be a table. Columns that are to be joined are joined already.
TextColumns ChooseColumns(const std::vector<TextTable>& tables, const FinetuneArguments& options);

// Throws unless a table has the columns of the first one, in any order. The error names the file.
// Files in JSON need the columns only that are used, and TextTable::column looks for these.
void CheckSameColumns(const TextTable& first, const TextTable& table, const std::string& option);

}  // namespace lathe
