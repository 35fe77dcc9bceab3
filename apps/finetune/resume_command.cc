#include "lathe/apps/finetune/resume_command.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"

namespace lathe {
namespace {

constexpr char kOption[] = "--resume_from_checkpoint";
constexpr char kSecret[] = "--token";  // is not printed: it belongs into HF_TOKEN

// Returns the text in quotes if a shell would take it apart.
std::string Quoted(const std::string& text) {
  constexpr char kPlain[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=,:+@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::vector<std::string> CommandLineOf(const std::string& process) {
  std::string text;
  try {
    text = ReadFile("/proc/" + process + "/cmdline");
  } catch (const Error&) {
    return {};  // it has ended, or it belongs to somebody else
  }
  std::vector<std::string> arguments;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\0', begin), text.size());
    arguments.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return arguments;
}

}  // namespace

std::string OwnCommand() {
  std::vector<std::string> command = CommandLineOf("self");
  // A launcher's command line ends with that of the program.
  const std::vector<std::string> parent = CommandLineOf(std::to_string(getppid()));
  const bool launched = command.size() > 1 && parent.size() > command.size() &&
                        std::equal(command.rbegin(), command.rend() - 1, parent.rbegin());
  if (launched) command = parent;
  std::string text;
  for (size_t i = 0; i < command.size(); ++i) {
    if (command[i].starts_with(std::string(kOption) + "=") ||
        command[i].starts_with(std::string(kSecret) + "=")) {
      continue;
    }
    if (command[i] == kOption || command[i] == kSecret) {
      if (i + 1 < command.size() && !command[i + 1].starts_with("--")) ++i;
      continue;
    }
    text += (text.empty() ? "" : " ") + Quoted(command[i]);
  }
  return text;
}

std::string CommandToResume(const std::string& checkpoint) {
  return OwnCommand() + " " + kOption + " " + Quoted(checkpoint);
}

}  // namespace lathe
