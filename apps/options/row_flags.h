// Options about the files and rows that are used.
#pragma once

#include <string>

#include "lathe/apps/cli/flags.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Adds the options about the choice of rows.
void AddRowFlags(FlagTable& flags, DataArguments& o);

// Throws if these options don't fit each other or others.
void ValidateRowFlags(const FlagTable& flags, const FinetuneArguments& o);

// Returns a path, or several with commas between them, with what exists as absolute paths. A name
// on the Hub is no path.
std::string AbsolutePaths(const std::string& value);

}  // namespace lathe
