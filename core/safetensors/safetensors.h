// The safetensors format: memory-mapped reading with the checks of the reference reader, and atomic
// writing.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/tensor.h"
#include "lathe/core/weight_files/stored_array.h"

namespace lathe {

struct SafetensorsEntry {
  std::string dtype;  // as in the file: "F32", "BF16", ...
  Shape shape;
  int64_t begin = 0, end = 0;  // byte offsets in what follows the header
  std::string file;
};

// Reads one file, or a directory's model.safetensors, or the shards that its
// model.safetensors.index.json lists. Files are memory-mapped.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& file);
  // Throws NotFound, naming the files that it looked for.
  static SafetensorsReader FromDirectory(const std::string& dir);
  SafetensorsReader(SafetensorsReader&&) noexcept;
  ~SafetensorsReader();

  const std::map<std::string, SafetensorsEntry>& entries() const;
  bool has(const std::string& name) const { return entries().count(name) != 0; }
  // Returns the tensors' places in memory, which stay valid without the reader.
  StoredArrays arrays() const;
  // Copies and converts straight from the mapping into `out`, whose shape must be the entry's. F64,
  // F32, F16 and BF16 become any floating type; integers become any integer type.
  void Read(const std::string& name, Tensor& out) const;
  // Returns a new tensor of the file's own dtype. Throws if Lathe doesn't have that dtype.
  Tensor Read(const std::string& name) const;

 private:
  SafetensorsReader();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Writes atomically (temporary file in the same folder, fsync, rename). The metadata is {"format":
// "pt"}.
void WriteSafetensors(const std::string& file,
                      const std::vector<std::pair<std::string, Tensor>>& tensors);

}  // namespace lathe
