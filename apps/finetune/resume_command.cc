#include "lathe/apps/finetune/resume_command.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "lathe/apps/cli/secret_names.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"

namespace lathe {
namespace {

constexpr char kOption[] = "--resume_from_checkpoint";

// Options that a command to repeat must not have. Tokens are secrets, which belong into HF_TOKEN.
constexpr std::string_view kLeftOut[] = {"resume_from_checkpoint", "token", "hub_token",
                                         "push_to_hub_token", "use_auth_token"};

// Returns true if the word is one of these options, with its value behind "=" or without it.
bool IsLeftOut(const std::string& word) {
  if (!word.starts_with("--")) return false;
  std::string name = word.substr(2, word.find('=') - 2);
  std::replace(name.begin(), name.end(), '-', '_');
  return std::ranges::find(kLeftOut, name) != std::end(kLeftOut);
}

// Returns true if a launcher's word `at` is a secret whose name is the word before it. That is an
// option such as `--api-key`, or a variable as in `mpiexec -genv HF_TOKEN ...`.
bool IsSecretValue(const std::vector<std::string>& words, size_t at) {
  if (at == 0 || words[at].starts_with("-")) return false;
  const std::string& name = words[at - 1];
  if (name.starts_with("-")) return name.find('=') == std::string::npos && EndsAsSecret(name);
  return at > 1 && (words[at - 2] == "-genv" || words[at - 2] == "-env") && MayNameSecret(name);
}

// Returns the word without the user and the password of an address: "http://proxy" for
// "http://user:password@proxy".
std::string WithoutUser(std::string word) {
  constexpr std::string_view kStart = "://";
  for (size_t at = word.find(kStart); at != std::string::npos; at = word.find(kStart, at)) {
    at += kStart.size();
    const size_t host = word.rfind('@', word.find('/', at));
    if (host != std::string::npos && host > at) word.erase(at, host + 1 - at);
  }
  return word;
}

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

// Returns true if the process has a place in a job, so that it is no launcher. False if that can't
// be read.
bool IsRank(pid_t process) {
  try {
    const std::string variables = '\0' + ReadFile("/proc/" + std::to_string(process) + "/environ");
    return variables.find(std::string("\0RANK=", 6)) != std::string::npos;
  } catch (const Error&) {
    return false;
  }
}

struct FoundCommand {
  std::vector<std::string> words;
  size_t num_parents = 0;     // so many words are those of the parent alone, such as a launcher's
  bool is_launchers = false;  // it starts all processes of the job
};

FoundCommand FindCommand() {
  FoundCommand found{CommandLineOf("self")};
  const std::vector<std::string>& own = found.words;
  // A launcher's command line ends with that of the program.
  const pid_t parent = getppid();
  std::vector<std::string> words = CommandLineOf(std::to_string(parent));
  const bool launched = own.size() > 1 && words.size() > own.size() &&
                        std::equal(own.rbegin(), own.rend() - 1, words.rbegin());
  if (launched) {
    const size_t num_parents = words.size() - (own.size() - 1);
    found = {std::move(words), num_parents, !IsRank(parent)};
  }
  return found;
}

}  // namespace

std::string OwnCommand() {
  const FoundCommand command = FindCommand();
  const std::vector<std::string>& words = command.words;
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (IsLeftOut(words[i])) {
      const bool has_value = words[i].find('=') == std::string::npos && i + 1 < words.size() &&
                             !words[i + 1].starts_with("--");
      if (has_value) ++i;
      continue;
    }
    std::string word = words[i];
    // The last of the launcher's words is the program.
    const bool is_value = i + 1 < command.num_parents && IsSecretValue(words, i);
    if (i < command.num_parents) word = is_value ? "" : WithoutSecret(word);
    text += (text.empty() ? "" : " ") + Quoted(WithoutUser(word));
  }
  return text;
}

std::string HowToGoOn(const std::string& checkpoint, int num_processes) {
  if (checkpoint.empty()) return "there is no checkpoint to go on from";
  const std::string option = std::string(kOption) + " " + Quoted(checkpoint);
  if (num_processes == 1 || FindCommand().is_launchers)
    return "to go on, run: " + OwnCommand() + " " + option;
  return "to go on, run the same command with the same launcher and " +
         std::to_string(num_processes) + " processes, and add: " + option;
}

}  // namespace lathe
