#include "lathe/core/device_libraries.h"

#include <algorithm>
#include <utility>

namespace lathe {
namespace {

std::vector<std::function<std::string()>>& Registered() {
  static std::vector<std::function<std::string()>> registered;
  return registered;
}

}  // namespace

bool RegisterDeviceLibrary(std::function<std::string()> describe) {
  Registered().push_back(std::move(describe));
  return true;
}

std::vector<std::string> DescribeDeviceLibraries() {
  std::vector<std::string> lines;
  for (const auto& describe : Registered()) lines.push_back(describe());
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace lathe
