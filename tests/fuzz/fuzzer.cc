#include "lathe/tests/fuzz/fuzzer.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"

namespace lathe::fuzz {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    // In memory if possible: a disk's file system may search long for a number for each new file.
    constexpr uintmax_t kEnough = 32 << 20;
    std::error_code error;
    const auto memory = fs::space("/dev/shm", error);
    const char* const given = std::getenv("TEST_TMPDIR");
    path_ = !error && memory.available > kEnough ? "/dev/shm" : given != nullptr ? given : "/tmp";
    path_ += "/lathe_fuzz.XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) throw FileError(path_, errno);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

const std::string& ScratchFolder() {
  static const Folder folder;
  return folder.path();
}

std::string ScratchFile(const std::string& name, std::string_view contents) {
  const std::string path = ScratchFolder() + "/" + name;
  unlink(path.c_str());  // some file systems sync a file that is cut and filled again
  FileWriter writer(path, path);
  writer.Write(contents.data(), contents.size());
  writer.Close();
  return path;
}

void CallAll(std::initializer_list<std::function<void()>> readers) {
  std::optional<Error> first;
  for (const auto& reader : readers) {
    try {
      reader();
    } catch (const Error& e) {
      if (!first) first = e;
    }
  }
  if (first) throw *first;
}

}  // namespace lathe::fuzz
