// Decides which of several ranks reports an error that ends them, so that the user reads it once.
#pragma once

#include "lathe/core/base/error.h"

namespace lathe {

enum class ErrorSource {
  kRun,          // any error while the program runs
  kCommandLine,  // found in the command line, which all ranks of a job have alike
};

// Returns true if this rank is to print the error that ends it; false if another rank does. Every
// rank that ends with an error of its own calls this once, and then ends.
//
// - Lost ranks: one rank on each machine reports them (see distributed/liveness/who_reports.h).
// - Any other error of ranks that have joined: the lowest of the ranks with the same message. The
//   first rank, or the only one, gets true after half a second, or after a second if rank 0 hangs.
// - An error before the ranks have joined: the first rank of each machine, if `lathe launch` knows
//   that it has failed. Other launchers don't tell. Then the error of a command line is taken for
//   reported by the first rank, and each rank reports any other error.
bool ShouldReport(const Error& error, ErrorSource source = ErrorSource::kRun);

}  // namespace lathe
