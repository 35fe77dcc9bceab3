// Errors that all ranks run into alike, such as an option that doesn't fit the data: the user reads
// them once.
#pragma once

#include "lathe/core/error.h"

namespace lathe {

// Whether a lower rank tells of the same error, so that this one needn't. Every rank that ends with
// an error of its own calls it once, and then ends; who is the first or the only one returns false
// after half a second, or a whole one where rank 0 hangs. False, too, in a process that has not
// joined others.
bool LowerRankTells(const Error& error);

}  // namespace lathe
