#include "lathe/core/base/error.h"

#include <absl/status/status.h>

#include <atomic>
#include <utility>

namespace lathe {
namespace {
std::atomic<bool> options_are_flags = false;
}  // namespace

Error::Error(absl::StatusCode code, std::string message, std::string hint,
             std::source_location location)
    : code_(code),
      message_(std::move(message)),
      hint_(std::move(hint)),
      location_(location),
      what_(hint_.empty() ? message_ : message_ + "\nhint: " + hint_) {}

Error Error::WithHint(std::string hint) const {
  Error error(code_, message_, std::move(hint), location_);
  error.detail_ = detail_;
  return error;
}

Error InvalidArgument(std::string message, std::string hint, std::source_location location) {
  return Error(absl::StatusCode::kInvalidArgument, std::move(message), std::move(hint), location);
}

Error NotFound(std::string message, std::string hint, std::source_location location) {
  return Error(absl::StatusCode::kNotFound, std::move(message), std::move(hint), location);
}

Error DataLoss(std::string message, std::string hint, std::source_location location) {
  return Error(absl::StatusCode::kDataLoss, std::move(message), std::move(hint), location);
}

std::string WithoutTag(const std::string& message) {
  const size_t end = message.starts_with('[') ? message.find("] ") : std::string::npos;
  return end == std::string::npos ? message : message.substr(end + 2);
}

std::string OptionName(std::string_view name) {
  return std::string(options_are_flags ? "--" : "").append(name);
}

void NameOptionsAsFlags() { options_are_flags = true; }

}  // namespace lathe
