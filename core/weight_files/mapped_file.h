// A file that is mapped into memory for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lathe {

class MappedFile {
 public:
  // Throws FileError, also for a folder, and the error of CheckRegularFile for a device or a pipe.
  explicit MappedFile(const std::string& path);
  // Maps the file of this descriptor, which stays open. Errors call it `name`.
  MappedFile(int fd, const std::string& name);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const char* data() const { return data_; }
  uint64_t size() const { return size_; }
  std::string_view bytes() const { return {data_, size_}; }
  // Takes the whole pages among these bytes from the process's memory; the system still caches
  // them. Without it a process that copies a file holds it twice. The bytes can be read again.
  void ForgetPages(const char* begin, size_t size) const;

 private:
  // Returns the number of the system's error, or 0.
  int Map(int fd);

  const char* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace lathe
