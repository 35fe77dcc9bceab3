// Durable files: a file or a folder is either there as a whole or not at all.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "lathe/core/base/error.h"

namespace lathe {

// Returns the file's bytes. Throws NotFound or PermissionDenied, such as `path: No such file or
// directory`.
std::string ReadFile(const std::string& path);

// Calls `write` with a temporary path in the same folder, syncs the temporary file and renames it
// to `path`. If `write` throws or the disk is full, removes the temporary file and leaves `path` as
// it was. Throws `path: No space left on device` etc.
void WriteFileAtomically(const std::string& path,
                         const std::function<void(const std::string&)>& write);
void WriteFileAtomically(const std::string& path, std::string_view contents);

// Makes what was written to the file survive a power cut. Throws FileError.
void SyncFile(const std::string& path);
// Makes earlier renames and removals in the folder survive a power cut.
void SyncFolder(const std::string& dir);

// A detail of errors (Error::detail): the file or folder that the error is about, and what is wrong
// with it. The error's message is `path: problem`.
struct AboutFile {
  std::string path, problem;
};

// Returns the error `path: problem`, which carries an AboutFile.
Error FileError(absl::StatusCode code, const std::string& path, const std::string& problem,
                std::string hint = "",
                std::source_location location = std::source_location::current());
// Returns the error for a failed system call on a file: `path: No such file or directory`, with the
// matching code. It carries an AboutFile.
Error FileError(const std::string& path, int error_number,
                std::source_location location = std::source_location::current());

// Returns the path of what lies in `folder`, relative to it: "" for the folder itself, null for
// what lies elsewhere. Compares the texts of the paths only.
std::optional<std::string> PathWithin(const std::string& folder, const std::string& path);

// Returns an error about a file in the folder `from`, or about the folder, as one about the same in
// `to`. Returns any other error as it is.
Error WithFolder(const Error& e, const std::string& from, const std::string& to);

// A new or truncated file, written without a buffer. Throws FileError of `shown_path`, because
// inside WriteFileAtomically the temporary file's name would tell the user nothing.
class FileWriter {
 public:
  FileWriter(const std::string& path, std::string shown_path);
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  ~FileWriter();
  void Write(const void* data, size_t size);
  // Reports errors that only show up at the end (a quota, a network file system). Without this call
  // they are lost.
  void Close();

 private:
  std::string shown_path_;
  int fd_ = -1;
};

}  // namespace lathe
