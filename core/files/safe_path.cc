#include "lathe/core/files/safe_path.h"

#include <absl/strings/ascii.h>

#include <algorithm>

namespace lathe {

bool IsSafePath(const std::string& path) {
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > 255) return false;
    begin = end + 1;
  }
  return std::none_of(path.begin(), path.end(), [](char c) {
    return c == '\\' || absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
}

}  // namespace lathe
