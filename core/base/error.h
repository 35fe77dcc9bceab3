// Lathe reports every error as an exception with a status code and a message in a fixed form. If
// the user can act, it also has a hint.
//
// Messages: `[layer_norm] weight must have shape [768] but has [512]` for calls; `train.csv:1207:
// expected 2 columns (text, label) but got 3` for files. Only `main` catches and prints.
#pragma once

#include <absl/base/config.h>

#include <any>
#include <exception>
#include <memory>
#include <source_location>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

// Declared here, because its header <absl/status/status.h> compiles for longer than all else that
// this header includes. A source that names a code includes it.
namespace absl {
ABSL_NAMESPACE_BEGIN
enum class StatusCode : int;
ABSL_NAMESPACE_END
}  // namespace absl

namespace lathe {

class Error : public std::exception {
 public:
  // `hint` tells the user what to do, without the word "hint"; it may be empty.
  explicit Error(absl::StatusCode code, std::string message, std::string hint = "",
                 std::source_location location = std::source_location::current());

  absl::StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& hint() const { return hint_; }
  const std::source_location& location() const { return location_; }
  // Returns the message, followed by a line `hint: ...` if there is a hint.
  const char* what() const noexcept override { return what_.c_str(); }

  // Returns the fact that the error carries for the code that handles it, such as LostRanks of
  // distributed/. Then that code need not read the text. Returns null if the error carries no T.
  template <typename T>
  const T* detail() const {
    return std::any_cast<T>(detail_.get());
  }
  // Returns a copy of the error that carries `detail` in place of what it carried before.
  template <typename T>
  Error WithDetail(T detail) const {
    Error error = *this;
    error.detail_ = std::make_shared<const std::any>(std::move(detail));
    return error;
  }
  // Returns a copy of the error, with what it carries, that has another hint.
  Error WithHint(std::string hint) const;

 private:
  absl::StatusCode code_;
  std::string message_;
  std::string hint_;
  std::source_location location_;
  std::string what_;
  std::shared_ptr<const std::any> detail_;  // null if the error carries nothing
};

// Shorthands for the most frequent codes.
Error InvalidArgument(std::string message, std::string hint = "",
                      std::source_location location = std::source_location::current());
Error NotFound(std::string message, std::string hint = "",
               std::source_location location = std::source_location::current());
Error DataLoss(std::string message, std::string hint = "",
               std::source_location location = std::source_location::current());

// Returns the message without a leading tag in brackets, which tells a program's user nothing. The
// tag is a function's ("[labels] ...") or a library's ("[json.exception.out_of_range.403] ...").
std::string WithoutTag(const std::string& message);

// Returns how texts name an option, such as a field of TrainingArguments: `name`, or "--name" after
// NameOptionsAsFlags.
//
//   throw InvalidArgument(path + ": is not empty", "set " + OptionName("overwrite_output_dir"));
//
// A program that embeds Lathe sets the field, and a user of `finetune` passes the flag.
std::string OptionName(std::string_view name);

// Makes all later texts of this process name options as flags. A program whose users pass flags
// calls it when it starts.
void NameOptionsAsFlags();

// Throws InvalidArgument("[op] part part ...") unless `ok`. Prints the parts only on failure.
template <typename... Parts>
void Check(bool ok, const char* op, const Parts&... parts) {
  if (ok) [[likely]] {
    return;
  }
  std::ostringstream message;
  message << '[' << op << "] ";
  (message << ... << parts);
  throw InvalidArgument(message.str());
}

}  // namespace lathe
