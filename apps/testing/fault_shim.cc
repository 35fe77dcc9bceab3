// A library to preload (LD_PRELOAD), which makes calls fail, or one call wait:
//
// - LATHE_FAULT=fsync:3:5: the third fsync fails with errno 5 (EIO).
// - LATHE_FAULT=write:3+:28: the third write fails, and all after it (ENOSPC, a disk that is full).
// - LATHE_FAULT=write:3:@5000: the third write takes 5000 ms longer.
// - LATHE_FAULT_PATH=TEXT: only calls on files whose path holds TEXT count.
// - LATHE_FAULT_PATH=TEXT$: only those whose path ends with TEXT.
// - LATHE_FAULT_MARK=FILE: the file that is made once the call fails or waits.
// - LATHE_NO_EXCHANGE: renameat2 takes no flags, as on file systems that can't exchange two names.
//
// The functions are write (and pwrite), fsync and rename (and renameat2).
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace {

std::atomic<int> calls{0};

bool Names(const char* path) {
  const char* const wanted = getenv("LATHE_FAULT_PATH");
  if (wanted == nullptr) return false;
  const size_t length = strlen(wanted), size = strlen(path);
  if (length == 0 || wanted[length - 1] != '$') return strstr(path, wanted) != nullptr;
  return size >= length - 1 && strncmp(path + size - (length - 1), wanted, length - 1) == 0;
}

// Waits for the whole time, whatever signals come.
void Wait(long milliseconds) {
  timespec left = {milliseconds / 1000, milliseconds % 1000 * 1'000'000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

// Returns true, and sets errno, if this call fails. Waits if it is one that waits.
bool Fails(const char* function, const char* path) {
  const char* const fault = getenv("LATHE_FAULT");
  const size_t length = strlen(function);
  if (fault == nullptr || strncmp(fault, function, length) != 0 || fault[length] != ':')
    return false;
  char* end = nullptr;
  const long number = strtol(fault + length + 1, &end, 10);
  const bool lasts = *end == '+';
  if (lasts) ++end;
  if (!Names(path)) return false;
  const int call = ++calls;
  if (call != number && !(lasts && call > number)) return false;
  const int mark = open(getenv("LATHE_FAULT_MARK"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  close(mark);
  if (end[1] == '@') {
    Wait(atol(end + 2));
    return false;
  }
  errno = atoi(end + 1);
  return true;
}

bool Fails(const char* function, int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return false;
  path[size] = 0;
  return Fails(function, path);
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t size) {
  static const auto next = Next<ssize_t(int, const void*, size_t)>("write");
  return Fails("write", fd) ? -1 : next(fd, data, size);
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  static const auto next = Next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return Fails("write", fd) ? -1 : next(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) {
  static const auto next = Next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
  return Fails("write", fd) ? -1 : next(fd, data, size, offset);
}

int fsync(int fd) {
  static const auto next = Next<int(int)>("fsync");
  return Fails("fsync", fd) ? -1 : next(fd);
}

int rename(const char* from, const char* to) noexcept {
  static const auto next = Next<int(const char*, const char*)>("rename");
  return Fails("rename", from) ? -1 : next(from, to);
}

int renameat2(int from_dir, const char* from, int to_dir, const char* to,
              unsigned int flags) noexcept {
  static const auto next = Next<int(int, const char*, int, const char*, unsigned int)>("renameat2");
  if (flags != 0 && getenv("LATHE_NO_EXCHANGE") != nullptr) {
    errno = EINVAL;
    return -1;
  }
  return Fails("rename", from) ? -1 : next(from_dir, from, to_dir, to, flags);
}

}  // extern "C"
