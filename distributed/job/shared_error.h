// Finds out if ranks fail with the same error, so that the user reads it once. An example is an
// option that doesn't fit the data.
#pragma once

#include "lathe/core/error.h"

namespace lathe {

// Returns true if a lower rank reports the same error, so that this one needn't. Every rank that
// ends with an error of its own calls this once, and then ends. The first rank, or the only one,
// gets false after half a second, or after a second if rank 0 hangs. A process that has not joined
// others gets false, too.
bool LowerRankTells(const Error& error);

}  // namespace lathe
