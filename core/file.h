// Durable files: a file or a folder is there whole or not at all.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "lathe/core/error.h"

namespace lathe {

// The file's bytes. Throws NotFound / PermissionDenied `path: No such file or directory`.
std::string ReadFile(const std::string& path);

// Calls `write` with a temporary path in the same folder, syncs what it wrote and renames it to
// `path`. If `write` throws or the disk is full, the temporary is removed and `path` is as it was.
// Throws `path: No space left on device` etc.
void WriteFileAtomically(const std::string& path,
                         const std::function<void(const std::string&)>& write);
void WriteFileAtomically(const std::string& path, std::string_view contents);

// Makes renames and removals in the folder survive a power cut.
void SyncFolder(const std::string& dir);

// What a failed system call says about a file: `path: No such file or directory`, with the matching
// code.
Error FileError(const std::string& path, int error_number,
                std::source_location location = std::source_location::current());

// A new or truncated file, written unbuffered. Throws what FileError makes, naming `shown_path`:
// inside WriteFileAtomically the temporary's name would tell the user nothing.
class FileWriter {
 public:
  FileWriter(const std::string& path, std::string shown_path);
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  ~FileWriter();
  void Write(const void* data, size_t size);
  // Reports what only shows up at the end (a quota, a network file system). Not called: errors are
  // lost.
  void Close();

 private:
  std::string shown_path_;
  int fd_ = -1;
};

}  // namespace lathe
