// How every program of Lathe reports an error: an `error:` line, perhaps a `hint:` line, and the
// exit code.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "lathe/core/error.h"

namespace lathe {

inline constexpr int kErrorExitCode = 1;
inline constexpr int kUsageExitCode = 2;

// Thrown for a wrong option, in particular for a value that only the data or the model shows to be
// wrong. The program ends with kUsageExitCode, as for mistakes that parsing finds.
class UsageError : public Error {
 public:
  explicit UsageError(std::string message, std::string hint = "",
                      std::source_location location = std::source_location::current())
      : Error(absl::StatusCode::kInvalidArgument, std::move(message), std::move(hint), location) {}
};

// Thrown if another rank is lost and this one has tried to save the model. This rank reports the
// lost rank even if others do, because only this one knows what was saved.
class LossWithSequel : public Error {
 public:
  using Error::Error;
};

// Thrown to end this process silently, because another process of the job tells the user why.
struct SaidElsewhere {
  int exit_code = kErrorExitCode;
};

// Sets what precedes "error:" in this process, such as "rank 1: ". It is empty at first.
void SetErrorPrefix(std::string prefix);

// The error to throw if standard output can't be written.
Error UnwrittenOutput();

// Runs `body` and returns its result. If it throws, prints the error to standard error and returns
// `exit_code`, or kUsageExitCode for a UsageError. A SaidElsewhere gives its own code and prints
// nothing. Output that could not be written is an error too, unless the result is a signal's.
int ReportErrors(int exit_code, const std::function<int()>& body);

}  // namespace lathe
