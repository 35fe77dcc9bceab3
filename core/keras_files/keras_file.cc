#include "lathe/core/keras_files/keras_file.h"

#include <absl/status/status.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <utility>

#include "lathe/core/keras_files/confined_hdf5.h"
#include "lathe/core/keras_files/hdf5_arrays.h"
#include "lathe/core/keras_files/tensorflow_names.h"
#include "lathe/core/weight_files/shard_index.h"

namespace lathe {
namespace {

std::vector<Hdf5Array> FindArrays(const MappedFile& memory, const MemoryFile& copies,
                                  const std::string& file) try {
  return FindConfined(memory, copies, file, FindHdf5Arrays);
} catch (const Error& e) {
  if (e.code() == absl::StatusCode::kInvalidArgument) {
    throw InvalidArgument(file + ": " + Printable(e.message()), e.hint());
  }
  if (e.code() != absl::StatusCode::kDataLoss) throw;
  throw BrokenWeights(file, e.message());
}

// Returns the array in the shape that PyTorch's model has, where only that tells it. Early versions
// of Transformers 4 gave heads a dimension of their own: attention's kernels were
// [in, heads, columns] or [heads, columns, out]. ArrayOf has made [columns, heads, in] or
// [out, columns, heads] of them.
StoredArray FitToModel(const StoredArray& array, const Shape& wanted) {
  StoredArray fitted = array;
  if (NumElements(array.shape) != NumElements(wanted)) return fitted;
  if (array.shape.size() == 3 && wanted.size() == 2 && !array.strides.empty()) {
    const int64_t last = array.shape[0], middle = array.shape[1], first = array.shape[2];
    if (wanted == Shape{middle * last, first}) {
      fitted.shape = wanted;
      fitted.strides = {1, middle * last};
    } else if (wanted == Shape{last, first * middle}) {
      fitted.shape = wanted;
      fitted.strides = {1, last};
    }
  } else if (array.strides.empty() && array.shape.size() == 2 && wanted.size() == 1) {
    fitted.shape = wanted;  // a bias of heads
  } else if (array.strides.empty() && array.shape.size() == 1 && wanted.size() == 2 &&
             wanted[1] == 1) {
    fitted.shape = wanted;  // the bias of a SeparableConv1D, which ConvBERT has as a column
  }
  return fitted;
}

// Returns true if the arrays have the same elements, in the same order in the file.
bool AreSame(const StoredArray& a, const StoredArray& b) {
  return a.shape == b.shape && a.dtype == b.dtype && a.strides == b.strides &&
         std::memcmp(a.data, b.data,
                     static_cast<size_t>(NumElements(a.shape) * SizeOfElement(a.dtype))) == 0;
}

// Returns the array as PyTorch has it. Checks all that the child says.
StoredArray ArrayOf(const Hdf5Array& found, VariableKind kind,
                    const std::shared_ptr<const MappedFile>& memory, const std::string& file) {
  const int64_t item = SizeOfElement(found.dtype);
  const auto rank = static_cast<int>(found.dims.size());
  Shape shape;
  for (const uint64_t dim : found.dims) {
    shape.push_back(dim <= INT64_MAX ? static_cast<int64_t>(dim) : -1);
  }
  if (item == 0 || rank > 8 || !IsSensible(shape) || found.offset > memory->size() ||
      static_cast<uint64_t>(NumElements(shape) * item) > memory->size() - found.offset) {
    throw BrokenWeights(file, "\"" + found.name + "\" is not in the file");
  }
  StoredArray array = {.dtype = found.dtype,
                       .shape = shape,
                       .file = file,
                       .data = memory->data() + found.offset,
                       .memory = memory,
                       .fit = FitToModel};
  if (kind != VariableKind::kPlain) {
    const std::vector<int64_t> strides = RowMajorStrides(shape);
    for (int i = 0; i < rank; ++i) {
      const auto from = static_cast<size_t>(TorchOrder(kind, rank, i));
      array.shape[static_cast<size_t>(i)] = shape[from];
      array.strides.push_back(strides[from]);
    }
  }
  return array;
}

}  // namespace

StoredArrays ReadKerasFile(const std::string& file) {
  const auto memory = std::make_shared<const MappedFile>(file);
  const MemoryFile copies;
  const std::vector<Hdf5Array> found = FindArrays(*memory, copies, file);
  return KerasTensors(found, memory, copies.Map(), file);
}

StoredArrays KerasTensors(const std::vector<Hdf5Array>& found,
                          const std::shared_ptr<const MappedFile>& memory,
                          const std::shared_ptr<const MappedFile>& copied,
                          const std::string& file) {
  StoredArrays arrays;
  for (const Hdf5Array& one : found) {
    const TorchName name = TorchNameOf(one.name, one.has_model);
    const StoredArray array = ArrayOf(one, name.kind, one.is_copied ? copied : memory, file);
    // A layer lists again what it shares with an earlier one.
    const auto [at, is_new] = arrays.emplace(name.name, array);
    if (!is_new && !AreSame(at->second, array)) {
      throw BrokenWeights(file, "has two tensors \"" + name.name + "\"");
    }
  }
  if (arrays.empty()) {
    // Such as a file by model.save() of Keras, which is sound.
    throw InvalidArgument(file + ": lists no weights (\"layer_names\")",
                          "the file may be of another kind; save the model with save_pretrained");
  }
  return arrays;
}

StoredArrays ReadKerasShards(const std::string& index) {
  std::set<std::string> shards;  // the index has TensorFlow's names, which differ from the shards'
  for (const auto& [name, shard] : ReadShardIndex(index, ".h5")) shards.insert(shard);
  StoredArrays arrays;
  for (const std::string& shard : shards) {
    const std::string file = ShardPath(index, shard);
    CheckShardIsThere(index, file);
    for (const auto& [name, array] : ReadKerasFile(file)) {
      const auto [at, is_new] = arrays.emplace(name, array);
      if (!is_new) {
        throw BrokenWeights(file, "tensor \"" + name + "\": is also in " + at->second.file);
      }
    }
  }
  return arrays;
}

}  // namespace lathe
