// Lets HDF5's library look at a file in a confined child process, because it crashes on some
// damaged files.
//
//   const MappedFile memory(path);
//   const MemoryFile copies;
//   const auto arrays = FindConfined(memory, copies, path, FindHdf5Arrays);
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lathe/core/keras_files/hdf5_arrays.h"
#include "lathe/core/weight_files/mapped_file.h"

namespace lathe {

// A file in memory, for what the child copies.
class MemoryFile {
 public:
  MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile();
  int fd() const { return fd_; }
  // Maps what was written, which nobody can change any more.
  std::shared_ptr<const MappedFile> Map() const;

 private:
  int fd_;
};

// Returns what find(bytes from HDF5's signature on, descriptor of the copies) returns in a confined
// child, with the offsets that hold for the whole file. A user block may lie before the signature.
// Throws what it throws, DataLoss if the child crashes or the file is no HDF5 file, all without the
// file's name. Throws FailedPrecondition, with the name `file`, if the library is missing or the
// system can't confine a process. The child may use 1 GiB of memory.
std::vector<Hdf5Array> FindConfined(
    const MappedFile& memory, const MemoryFile& copies, const std::string& file,
    const std::function<std::vector<Hdf5Array>(std::string_view bytes, int copies)>& find);

// Returns the arrays in what the child of FindConfined answers, or throws the error that it tells.
std::vector<Hdf5Array> ArraysInAnswer(const std::string& message);

}  // namespace lathe
