// Errors that decide how a program ends, beside its text (see apps/cli/report_error.h).
#pragma once

#include <string>
#include <utility>

#include "lathe/core/error.h"

namespace lathe {

inline constexpr int kErrorExitCode = 1;

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

}  // namespace lathe
