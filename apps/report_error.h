// How every program of Lathe's ends: one `error:` line, maybe a `hint:` line, and the exit code.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "lathe/core/error.h"

namespace lathe {

inline constexpr int kErrorExitCode = 1;
inline constexpr int kUsageExitCode = 2;

// The value of an option is wrong, as only the data or the model could show. It ends with
// kUsageExitCode, as do the mistakes that parsing finds.
class UsageError : public Error {
 public:
  explicit UsageError(std::string message, std::string hint = "",
                      std::source_location location = std::source_location::current())
      : Error(absl::StatusCode::kInvalidArgument, std::move(message), std::move(hint), location) {}
};

// That another process is lost, told by this one whoever tells of it too: it knows what is saved.
class LossWithSequel : public Error {
 public:
  using Error::Error;
};

// Ends a process of several without a word when another one tells the user why.
struct SaidElsewhere {
  int exit_code = kErrorExitCode;
};

// What precedes "error:" in this process: "rank 1: ". Empty at first.
void SetErrorPrefix(std::string prefix);

// What is thrown when standard output can't be written.
Error UnwrittenOutput();

// Runs `body` and returns its result. An exception is printed to standard error and turned into
// `exit_code`; output that could not be written is an error too, unless the result is a signal's.
int ReportErrors(int exit_code, const std::function<int()>& body);

}  // namespace lathe
