// Writes the files that ColumnFile reads, in pieces of any size and in little memory.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lathe/data/column_files/column_file.h"

namespace lathe {

class ColumnFileWriter {
 public:
  // Writes to `path`, which is created or emptied. `shown_path` is the file's name in errors, which
  // may be the one that it gets later. Throws FileError, or FailedPrecondition if HDF5 isn't
  // installed; so do the functions below.
  ColumnFileWriter(const std::string& path, const std::string& shown_path);
  ~ColumnFileWriter();
  ColumnFileWriter(const ColumnFileWriter&) = delete;
  ColumnFileWriter& operator=(const ColumnFileWriter&) = delete;

  void Add(const std::string& name, ElementType type);
  // Appends `size` elements of the column's type.
  void Append(const std::string& name, const void* elements, int64_t size);
  template <typename T>
  void Append(const std::string& name, const std::vector<T>& elements) {
    Append(name, elements.data(), std::ssize(elements));
  }
  // Writes what is left, then the directory. Does not sync.
  void Finish(const nlohmann::json& about);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lathe
