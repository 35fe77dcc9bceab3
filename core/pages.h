// Memory straight from the system, in huge pages where it has them: they are read half as fast
// again as small ones and come into being several times as fast.
#pragma once

#include <cstdint>

namespace lathe {

inline constexpr int64_t kPageBytes = 4096, kHugePageBytes = int64_t{2} << 20;

// Fresh pages, zeroed, at a multiple of kHugePageBytes; with `file`, an open memory file of at
// least so many bytes, those of the file, to be read only unless `writes`. They are freed by
// munmap. Null if there is no room.
char* MapPages(int64_t bytes, int file = -1, bool writes = true);

// A new memory file of so many bytes, all of them there, and zeroed, for several processes to map;
// and its pages.
struct MemoryFile {
  int file = -1;  // to be closed; negative: there is no room
  char* pages = nullptr;
};
MemoryFile MakeMemoryFile(const char* name, int64_t bytes);

}  // namespace lathe
