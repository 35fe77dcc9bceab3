// Finds the arrays in an HDF5 file that Keras wrote. The file may be damaged or made to harm, and
// HDF5's library crashes on some of such files. So call this in a confined child only
// (confined_child.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

struct Hdf5Array {
  std::string name;        // the variable's, e.g. "tf_bert_model/bert/pooler/dense/kernel:0"
  bool has_model = false;  // the name's first part is that of the model's class
  std::string dtype;       // as safetensors names it
  std::vector<uint64_t> dims = {};
  bool is_copied = false;  // the elements are in `copies` below, not in the file itself
  uint64_t offset = 0;     // of the elements, which follow each other
};

// Returns the arrays in the file with these bytes, which begin with HDF5's signature: no userblock
// lies before it. Elements that are compressed or in pieces are written to the descriptor `copies`.
// Follows no links to other files and loads no plugins. Throws DataLoss, without the file's name.
std::vector<Hdf5Array> FindHdf5Arrays(std::string_view bytes, int copies);

// Returns the arrays as bytes, and the arrays of such bytes. The latter throws DataLoss.
std::string Serialize(const std::vector<Hdf5Array>& arrays);
std::vector<Hdf5Array> Deserialize(std::string_view bytes);

}  // namespace lathe
