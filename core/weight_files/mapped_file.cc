#include "lathe/core/weight_files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "lathe/core/base/file.h"
#include "lathe/core/files/regular_file.h"

namespace lathe {

MappedFile::MappedFile(const std::string& path) {
  CheckRegularFile(path);
  // O_NONBLOCK: a pipe without a writer must be refused, not waited for.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    throw FileError(path, errno);
  }
  const int error_number = Map(fd);
  close(fd);
  if (error_number != 0) throw FileError(path, error_number);
}

MappedFile::MappedFile(int fd, const std::string& name) {
  if (const int error_number = Map(fd); error_number != 0) throw FileError(name, error_number);
}

int MappedFile::Map(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return errno;
  if (!S_ISREG(info.st_mode)) return S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
  if (info.st_size == 0) return 0;
  size_ = static_cast<uint64_t>(info.st_size);
  void* const mapped = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
  if (mapped == MAP_FAILED) return errno;
  data_ = static_cast<const char*>(mapped);
  return 0;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    munmap(const_cast<char*>(data_), size_);
  }
}

void MappedFile::ForgetPages(const char* begin, size_t size) const {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(begin) + size) / page * page;
  if (first < last) {
    madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);  // a hint: may fail
  }
}

}  // namespace lathe
