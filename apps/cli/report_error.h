// How every program of Lathe's ends: one `error:` line, maybe a `hint:` line, and the exit code.
#pragma once

#include <functional>
#include <string>

#include "lathe/core/error.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {

inline constexpr int kUsageExitCode = 2;

// What precedes "error:" in this process: "rank 1: ". Empty at first.
void SetErrorPrefix(std::string prefix);

// What is thrown when standard output can't be written.
Error UnwrittenOutput();

// Runs `body` and returns its result. An exception is printed to standard error and turned into
// `exit_code`; output that could not be written is an error too, unless the result is a signal's.
int ReportErrors(int exit_code, const std::function<int()>& body);

}  // namespace lathe
