// A file that only grows, for logs that other programs read while they are written.
#pragma once

#include <string>
#include <string_view>

namespace lathe {

class AppendFile {
 public:
  // Makes the file, and the folders above it, if they don't exist. What the file holds stays.
  // Throws FileError, naming the folder or the file.
  explicit AppendFile(std::string path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  const std::string& path() const { return path_; }
  // Returns true if the file has bytes but no newline at its end, as after a crash.
  bool EndsWithinLine() const;
  // Adds all of the bytes, which readers then see. If that fails, adds none and throws FileError.
  // Bytes are not synced: a power cut may lose the last ones.
  void Append(std::string_view bytes);

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace lathe
