#include "lathe/apps/cli/report_error.h"

#include <absl/status/status.h>

#include <algorithm>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/text/terminal_text.h"

namespace lathe {
namespace {

// Puts a message on one line, because it may quote input with line breaks and other controls.
std::string OneLine(std::string text) {
  text = TerminalText(text);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return text;
}

std::string error_prefix;

constexpr int kSignalExitCode = 128;  // from here on: ended by a signal

void Print(const std::string& message, const std::string& hint = "") {
  std::cout.flush();
  // The text is written in one piece, because other processes may write there, too.
  std::string text = error_prefix + "error: " + OneLine(message) + '\n';
  if (!hint.empty()) text += error_prefix + "hint: " + OneLine(hint) + '\n';
  std::cerr << text;
}

}  // namespace

void SetErrorPrefix(std::string prefix) { error_prefix = std::move(prefix); }

Error UnwrittenOutput() {
  return Error(absl::StatusCode::kUnavailable, "standard output: cannot be written",
               "is the disk full, or has its reader ended?");
}

int ReportErrors(int exit_code, const std::function<int()>& body) {
  try {
    const int result = body();
    // A signal that ends this program may have ended the reader of its output just before.
    if (!std::cout.flush() && result < kSignalExitCode) throw UnwrittenOutput();
    return result;
  } catch (const ReportedElsewhere& reported) {
    return reported.exit_code;
  } catch (const UsageError& e) {
    Print(e.message(), e.hint());
    return kUsageExitCode;
  } catch (const Error& e) {
    Print(e.message(), e.hint());
  } catch (const std::bad_alloc&) {
    Print("out of memory", "use a smaller batch size or a smaller --max_seq_length");
  } catch (const std::system_error& e) {
    const bool is_thread = e.code() == std::errc::resource_unavailable_try_again;
    Print(
        is_thread ? "no thread could be started: " + std::string(e.what()) : e.what(),
        is_thread
            ? "there is too little memory, or the user has too many threads (see ulimit -u and -v)"
            : "");
  } catch (const std::exception& e) {
    Print(e.what());
  }
  return exit_code;
}

}  // namespace lathe
