// Decides which of several ranks reports an error that all of them have, so that the user reads it
// once. An example is an option that doesn't fit the data. For lost ranks see
// distributed/liveness/who_reports.h.
#pragma once

#include "lathe/core/base/error.h"

namespace lathe {

// Returns true if a lower rank reports the same error, so that this one needn't. Every rank that
// ends with an error of its own calls this once, and then ends. The first rank, or the only one,
// gets false after half a second, or after a second if rank 0 hangs. A process that has not joined
// others gets false, too.
bool IsReportedByLowerRank(const Error& error);

}  // namespace lathe
