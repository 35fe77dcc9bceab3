// Errors that carry more than their text: how the program ends (apps/cli/report_error.h).
#pragma once

#include <absl/status/status.h>

#include <exception>
#include <string>
#include <utility>

#include "lathe/core/base/error.h"

namespace lathe {

inline constexpr int kErrorExitCode = 1;

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
class LostRankError : public Error {
 public:
  // `error` says which rank is lost, and what was saved.
  explicit LostRankError(const Error& error) : Error(error) {}
};

// Thrown to end this process silently, because another rank of the job tells the user why.
struct ReportedElsewhere : public std::exception {
  explicit ReportedElsewhere(int code = kErrorExitCode) : exit_code(code) {}
  const char* what() const noexcept override {
    return "another process of the job reports the error";
  }

  int exit_code;
};

}  // namespace lathe
