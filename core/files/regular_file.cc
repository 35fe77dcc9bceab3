#include "lathe/core/files/regular_file.h"

#include <absl/status/status.h>
#include <sys/stat.h>

#include "lathe/core/base/file.h"

namespace lathe {

void CheckRegularFile(const std::string& path) {
  struct stat info;
  // ReadFile has an error of its own for a folder.
  if (stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)) return;
  throw FileError(absl::StatusCode::kInvalidArgument, path, "is not a regular file");
}

std::string ReadRegularFile(const std::string& path) {
  CheckRegularFile(path);
  return ReadFile(path);
}

}  // namespace lathe
