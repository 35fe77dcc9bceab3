// How every program of Lathe reports an error: an `error:` line, perhaps a `hint:` line, and the
// exit code.
#pragma once

#include <functional>
#include <iostream>
#include <optional>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {

inline constexpr int kUsageExitCode = 2;

// Sets what precedes "error:" in this process, such as "rank 1: ". It is empty at first.
void SetErrorPrefix(std::string prefix);

// The error to throw if standard output can't be written.
Error UnwrittenOutput();

// Runs `body` and returns its result. If it throws, prints the error to standard error and returns
// `exit_code`, or kUsageExitCode for a UsageError. A ReportedElsewhere gives its own code and
// prints nothing. Output that could not be written is an error too, unless the result is a
// signal's.
int ReportErrors(int exit_code, const std::function<int()>& body);

// Sets `options` to `parse(args)`. Returns the exit code if the command ends here: after a wrong
// argument, which this reports, or after --help, whose text this prints. Options has the members
// `help` and `help_text`.
template <typename Options, typename Parse, typename Args>
std::optional<int> ParseOrEnd(Options* options, Parse parse, const Args& args) {
  const int usage = ReportErrors(kUsageExitCode, [&] {
    *options = parse(args);
    return 0;
  });
  if (usage != 0) return usage;
  if (!options->help) return std::nullopt;
  std::cout << options->help_text;
  return 0;
}

}  // namespace lathe
