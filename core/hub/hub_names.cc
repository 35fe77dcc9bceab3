#include "lathe/core/hub/hub_names.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace lathe {
namespace {

// Returns true for one part of a model's name.
bool IsNamePart(const std::string& part) {
  const auto inner = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  };
  return !part.empty() && std::all_of(part.begin(), part.end(), inner) && part.front() != '-' &&
         part.front() != '.' && part.back() != '-' && part.back() != '.';
}

}  // namespace

bool IsModelName(const std::string& text) {
  if (text.size() > 96 || text.find("--") != std::string::npos ||
      text.find("..") != std::string::npos || text.ends_with(".git")) {
    return false;
  }
  const size_t slash = text.find('/');
  if (slash == std::string::npos) return IsNamePart(text);
  return IsNamePart(text.substr(0, slash)) && IsNamePart(text.substr(slash + 1));
}

bool IsLocalPath(const std::string& name_or_path) {
  std::error_code code;
  return std::filesystem::exists(name_or_path, code);
}

bool IsCommit(const std::string& text) {
  return text.size() == 40 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string PercentEncoded(const std::string& text, bool keep_slashes) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isalnum(byte) || c == '-' || c == '_' || c == '.' || c == '~' ||
        (c == '/' && keep_slashes)) {
      encoded += c;
    } else {
      encoded += '%';
      encoded += kDigits[byte >> 4];
      encoded += kDigits[byte & 15];
    }
  }
  return encoded;
}

}  // namespace lathe
