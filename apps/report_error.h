// How every program of Lathe's ends: one `error:` line, maybe a `hint:` line, and the exit code.
#pragma once

#include <functional>

namespace lathe {

inline constexpr int kErrorExitCode = 1;
inline constexpr int kUsageExitCode = 2;

// Runs `body` and returns its result. An exception is printed to standard error and turned into
// `exit_code`.
int ReportErrors(int exit_code, const std::function<int()>& body);

}  // namespace lathe
