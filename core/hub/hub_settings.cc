#include "lathe/core/hub/hub_settings.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/hub/http/http.h"

namespace lathe {
namespace {

// Returns the value of the first of these variables that is set and not empty, or "".
std::string Variable(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name); value != nullptr && *value != 0) return value;
  }
  return "";
}

bool IsTrue(const std::string& value) {
  const std::string upper = absl::AsciiStrToUpper(value);
  return upper == "1" || upper == "ON" || upper == "YES" || upper == "TRUE";
}

std::string HomeFolder() {
  const std::string home = Variable({"HOME"});
  if (!home.empty()) return home;
  const passwd* const user = getpwuid(getuid());
  return user != nullptr ? user->pw_dir : ".";
}

// Replaces a "~" that stands for the user's own folder.
std::string ExpandHome(const std::string& path) {
  if (path == "~" || path.starts_with("~/")) return HomeFolder() + path.substr(1);
  return path;
}

// Replaces "~", and variables as $NAME or ${NAME}: a file of settings is read by no shell. The name
// of one that isn't set stays.
std::string Expand(const std::string& text) {
  const std::string path = ExpandHome(text);
  std::string expanded;
  for (size_t at = 0; at < path.size();) {
    const bool braced = path.compare(at, 2, "${") == 0;
    const size_t begin = at + (braced ? 2 : 1);
    size_t end = begin;
    while (end < path.size() && (absl::ascii_isalnum(path[end]) || path[end] == '_')) ++end;
    const bool is_name =
        path[at] == '$' && end > begin && (!braced || (end < path.size() && path[end] == '}'));
    const char* const value =
        is_name ? std::getenv(path.substr(begin, end - begin).c_str()) : nullptr;
    expanded += value != nullptr ? value : path.substr(at, 1);
    at = value != nullptr ? end + braced : at + 1;
  }
  return expanded;
}

double Seconds(const char* name) {
  const std::string text = Variable({name});
  if (text.empty()) return 10;
  double seconds = 0;
  if (!absl::SimpleAtod(text, &seconds) || !std::isfinite(seconds) || seconds <= 0) {
    throw InvalidArgument(
        std::string(name) + " must be a number of seconds above 0 but is \"" + text + "\"",
        "correct the environment variable or unset it");
  }
  return std::min(seconds, 1e6);
}

std::string Endpoint() {
  std::string endpoint = Variable({"HF_ENDPOINT"});
  if (endpoint.empty()) return "https://huggingface.co";
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const std::string lower = absl::AsciiStrToLower(endpoint);
  if (!lower.starts_with("https://") && !lower.starts_with("http://")) {
    throw InvalidArgument(
        "HF_ENDPOINT must begin with https:// or http:// but is \"" + WithoutUser(endpoint) + "\"",
        "correct the environment variable or unset it");
  }
  return endpoint;
}

// Returns the token without white space around it. A line break inside would end the header.
std::string CheckedToken(std::string token, const std::string& source) {
  absl::StripAsciiWhitespace(&token);
  const bool ok =
      std::all_of(token.begin(), token.end(), [](char c) { return absl::ascii_isgraph(c); });
  if (!ok) {
    throw InvalidArgument(source + ": a token has letters, digits and signs only",
                          "copy the token again");
  }
  return token;
}

std::string Token(const std::string& given, const std::string& token_file) {
  if (!given.empty()) return CheckedToken(given, "the given token");
  if (IsTrue(Variable({"HF_HUB_DISABLE_IMPLICIT_TOKEN"}))) return "";
  const std::string set =
      CheckedToken(Variable({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}), "HF_TOKEN");
  if (!set.empty()) return set;
  std::error_code code;
  if (!std::filesystem::exists(token_file, code)) return "";
  return CheckedToken(ReadFile(token_file), token_file);
}

}  // namespace

std::string HuggingFaceHome() {
  if (const std::string home = Variable({"HF_HOME"}); !home.empty()) return Expand(home);
  const std::string cache = Variable({"XDG_CACHE_HOME"});
  return (cache.empty() ? HomeFolder() + "/.cache" : Expand(cache)) + "/huggingface";
}

std::string HubCacheFolder(const std::string& given) {
  if (!given.empty()) return ExpandHome(given);
  const std::string set = Variable({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  return set.empty() ? HuggingFaceHome() + "/hub" : Expand(set);
}

HubSettings ReadHubSettings(const HubOptions& options) {
  HubSettings settings;
  settings.endpoint = Endpoint();
  settings.revision = options.revision.empty() ? "main" : options.revision;
  settings.offline =
      options.offline || IsTrue(Variable({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}));
  const std::string token_path = Variable({"HF_TOKEN_PATH"});
  settings.token_file = token_path.empty() ? HuggingFaceHome() + "/token" : Expand(token_path);
  if (!settings.offline) settings.token = Token(options.token, settings.token_file);
  settings.cache_dir = HubCacheFolder(options.cache_dir);
  settings.show_waits = options.show_progress;  // a program without bars must not seem to hang
  settings.show_progress = options.show_progress && options.show_bars &&
                           !IsTrue(Variable({"HF_HUB_DISABLE_PROGRESS_BARS"}));
  settings.use_symlinks = !IsTrue(Variable({"HF_HUB_DISABLE_SYMLINKS"}));
  settings.etag_timeout = Seconds("HF_HUB_ETAG_TIMEOUT");
  settings.download_timeout = Seconds("HF_HUB_DOWNLOAD_TIMEOUT");
  return settings;
}

}  // namespace lathe
