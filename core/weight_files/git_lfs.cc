#include "lathe/core/weight_files/git_lfs.h"

#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "lathe/core/base/error.h"

namespace lathe {

void CheckIsNoLfsPointer(const std::string& file) {
  constexpr std::string_view kBegin = "version https://git-lfs";
  std::error_code code;
  if (!std::filesystem::is_regular_file(file, code)) return;  // a pipe would have nothing left
  std::string begin(kBegin.size(), '\0');
  std::ifstream(file, std::ios::binary).read(begin.data(), static_cast<int64_t>(begin.size()));
  if (begin != kBegin) return;
  throw InvalidArgument(file + ": is only a pointer of Git LFS to the weights",
                        "get the weights by `git lfs pull`");
}

}  // namespace lathe
