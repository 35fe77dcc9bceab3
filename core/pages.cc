#include "lathe/core/pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "lathe/core/base/round_up.h"

namespace lathe {

char* MapPages(int64_t bytes, int file, bool writes) {
  const auto size = static_cast<size_t>(RoundUp(bytes, kPageBytes));
  constexpr auto kHuge = static_cast<size_t>(kHugePageBytes);
  constexpr int kAccess = PROT_READ | PROT_WRITE;
  void* mapped =
      mmap(nullptr, size + kHuge, kAccess, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* begin = static_cast<char*>(mapped);
  const size_t past = reinterpret_cast<uintptr_t>(begin) % kHuge;
  const size_t skipped = past == 0 ? 0 : kHuge - past;
  if (skipped > 0) munmap(begin, skipped);
  begin += skipped;
  munmap(begin + size, kHuge - skipped);
  const int access = writes ? kAccess : PROT_READ;
  if (file >= 0 && mmap(begin, size, access, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
    munmap(begin, size);
    return nullptr;
  }
  madvise(begin, size, MADV_HUGEPAGE);
  return begin;
}

MemoryFile MakeMemoryFile(const char* name, int64_t bytes) {
  MemoryFile made{memfd_create(name, MFD_CLOEXEC)};
  if (made.file < 0) return made;
  int result = 0;
  while ((result = posix_fallocate(made.file, 0, bytes)) == EINTR) {
  }
  if (result == 0) made.pages = MapPages(bytes, made.file);
  if (made.pages != nullptr) return made;
  close(made.file);
  return {};
}

}  // namespace lathe
