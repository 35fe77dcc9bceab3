// Finds the arrays in an HDF5 file that Keras or another program wrote. The file may be damaged or
// made to harm, and HDF5's library crashes on some of such files. So call this in a confined child
// only (confined_hdf5.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

// A part of an array, as the file holds it.
struct Hdf5Chunk {
  uint64_t offset = 0, size = 0;  // bytes in the file
  uint64_t skipped = 0;           // bit i is set if filter i was not applied to this chunk
};

struct Hdf5Array {
  std::string name;        // the variable's, e.g. "tf_bert_model/bert/pooler/dense/kernel:0"
  bool has_model = false;  // the name's first part is that of the model's class
  std::string dtype;       // as safetensors names it
  std::vector<uint64_t> dims = {};
  bool is_copied = false;  // the elements are in `copies` below, not in the file itself
  uint64_t offset = 0;     // of the elements, which follow each other
  // These are set for arrays in chunks, by FindHdf5Columns. Each chunk has the elements of a block
  // of chunk_dims, also where it reaches beyond the array. The blocks are in row-major order.
  std::vector<uint64_t> chunk_dims = {};
  std::vector<uint64_t> filters = {};  // H5Z_filter_t, in the order in which a writer applies them
  std::vector<Hdf5Chunk> chunks = {};
};

// More chunks would take HDF5 minutes to find, since it goes through all of them for each.
inline constexpr uint64_t kMostHdf5Chunks = 32768;

// Returns the arrays in the file with these bytes, which begin with HDF5's signature. Elements that
// are compressed or in pieces are written to the descriptor `copies`. Follows links within the
// file, and loads no plugins. Throws DataLoss for a damaged file. Throws Unimplemented, with a
// hint, for types and filters that Lathe does not have and for what lies in another file. The
// errors lack the file's name.
std::vector<Hdf5Array> FindHdf5Arrays(std::string_view bytes, int copies);

// Returns the arrays of these names ("inputs" or "group/inputs"), with at least one dimension.
// Those in chunks are left in the file. Throws InvalidArgument if one is not there, is no array of
// numbers or has too many chunks. Else throws what FindHdf5Arrays throws.
std::vector<Hdf5Array> FindHdf5Columns(std::string_view bytes, int copies,
                                       const std::vector<std::string>& names);

// Returns the arrays as bytes, and the arrays of such bytes. The latter throws DataLoss.
std::string Serialize(const std::vector<Hdf5Array>& arrays);
std::vector<Hdf5Array> Deserialize(std::string_view bytes);

}  // namespace lathe
