#include "lathe/train/checkpoint/available_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>

namespace lathe {
namespace {

constexpr int64_t kUnlimited = INT64_MAX;

// Returns the number that a text begins with, after blanks. Version 2 writes "max" for no limit.
std::optional<int64_t> LeadingNumber(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  int64_t number = 0;
  const auto error = std::from_chars(text.data(), text.data() + text.size(), number).ec;
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

// Returns the number behind `key` in a file of lines "KEY NUMBER"; with an empty key, the number
// that the file begins with.
std::optional<int64_t> NumberIn(const std::string& path, std::string_view key = "") {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return LeadingNumber(std::string_view(line).substr(key.size()));
  }
  return std::nullopt;
}

// The names of the files of a version of control groups.
struct GroupFiles {
  const char *mount, *limit, *usage, *cache;
};
constexpr GroupFiles kVersion1 = {"/sys/fs/cgroup/memory", "/memory.limit_in_bytes",
                                  "/memory.usage_in_bytes", "total_inactive_file "};
constexpr GroupFiles kVersion2 = {"/sys/fs/cgroup", "/memory.max", "/memory.current",
                                  "inactive_file "};

// Returns what the group `name`, such as "/user/job", and those around it could still give. In a
// container only the outermost of them may be there.
int64_t AvailableInGroup(const std::string& root, const GroupFiles& files, std::string name) {
  int64_t available = kUnlimited;
  for (;;) {
    if (name == "/") name.clear();
    const std::string group = root + files.mount + name;
    const auto limit = NumberIn(group + files.limit), usage = NumberIn(group + files.usage);
    if (limit && usage) {
      const int64_t cache = NumberIn(group + "/memory.stat", files.cache).value_or(0);
      available = std::min(available, std::max<int64_t>(0, *limit - *usage + cache));
    }
    if (name.empty()) return available;
    name.resize(name.rfind('/') == std::string::npos ? 0 : name.rfind('/'));
  }
}

}  // namespace

int64_t AvailableMemory(const std::string& root) {
  int64_t available = kUnlimited;
  if (const auto kibibytes = NumberIn(root + "/proc/meminfo", "MemAvailable:"))
    available = *kibibytes * 1024;
  // Lines such as "4:memory:/user/job" (version 1) and "0::/user/job" (version 2).
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string name = line.substr(second + 1);
    if (controllers == ",,")
      available = std::min(available, AvailableInGroup(root, kVersion2, name));
    if (controllers.find(",memory,") != std::string::npos)
      available = std::min(available, AvailableInGroup(root, kVersion1, name));
  }
  return available;
}

}  // namespace lathe
