// The safetensors format: memory-mapped reading, checked as the reference reader checks, and atomic
// writing.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/tensor.h"

namespace lathe {

struct SafetensorsEntry {
  std::string dtype;  // as in the file: "F32", "BF16", ...
  Shape shape;
  int64_t begin = 0, end = 0;  // bytes, from the start of the buffer
  std::string file;
};

// One file, or a directory's model.safetensors, or its shards by model.safetensors.index.json.
// Mapped, not read.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& file);
  // Throws NotFound naming what was looked for.
  static SafetensorsReader FromDirectory(const std::string& dir);
  SafetensorsReader(SafetensorsReader&&) noexcept;
  ~SafetensorsReader();

  const std::map<std::string, SafetensorsEntry>& entries() const;
  bool has(const std::string& name) const { return entries().count(name) != 0; }
  // Copies and converts (F64, F32, F16, BF16 -> floating; integers -> integer tensors) straight
  // from the mapping into `out`, whose shape must be the entry's.
  void Read(const std::string& name, Tensor& out) const;
  // A new tensor of the file's own dtype (those that Lathe has).
  Tensor Read(const std::string& name) const;

 private:
  SafetensorsReader();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Writes atomically (temporary file in the same folder, fsync, rename), metadata {"format": "pt"}.
void WriteSafetensors(const std::string& file,
                      const std::vector<std::pair<std::string, Tensor>>& tensors);

}  // namespace lathe
