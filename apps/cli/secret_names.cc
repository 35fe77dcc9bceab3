#include "lathe/apps/cli/secret_names.h"

#include <absl/strings/ascii.h>

#include <algorithm>

namespace lathe {

bool MayNameSecret(std::string_view name) {
  constexpr std::string_view kParts[] = {"TOKEN", "KEY", "SECRET", "PASS", "CREDENTIAL", "AUTH"};
  const std::string upper = absl::AsciiStrToUpper({name.data(), name.size()});
  return std::ranges::any_of(
      kParts, [&](std::string_view part) { return upper.find(part) != std::string::npos; });
}

bool EndsAsSecret(std::string_view name) {
  constexpr std::string_view kEnds[] = {"TOKEN",      "KEY",        "SECRET", "PASS",
                                        "PASSWORD",   "PASSWD",     "AUTH",   "PASSPHRASE",
                                        "CREDENTIAL", "CREDENTIALS"};
  const std::string upper = absl::AsciiStrToUpper({name.data(), name.size()});
  return std::ranges::any_of(kEnds, [&](std::string_view end) { return upper.ends_with(end); });
}

std::string WithoutSecret(const std::string& word) {
  const auto is_of_name = [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-'; };
  for (size_t end = word.find('='); end != std::string::npos; end = word.find('=', end + 1)) {
    size_t begin = end;
    while (begin > 0 && is_of_name(word[begin - 1])) --begin;
    if (MayNameSecret(word.substr(begin, end - begin))) return word.substr(0, end + 1);
  }
  return word;
}

}  // namespace lathe
