// Arrays as files of weights hold them, whatever the format: bytes in a mapped file, with a dtype,
// a shape and strides.
//
//   const StoredArrays arrays = ReadPyTorchFile("pytorch_model.bin");
//   ReadStoredArray("bert.pooler.dense.bias", arrays.at("bert.pooler.dense.bias"), tensor);
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lathe/core/tensor.h"
#include "lathe/core/weight_files/mapped_file.h"

namespace lathe {

struct StoredArray {
  std::string dtype;  // as safetensors names it: "F32", "BF16", ...
  Shape shape;
  std::string file;            // for messages
  const char* data = nullptr;  // the first element, little-endian, at any alignment
  // The distance in elements from one index of a dimension to the next. Empty: the elements lie in
  // row-major order, without gaps.
  std::vector<int64_t> strides = {};
  std::shared_ptr<const MappedFile> memory = {};  // what `data` points into
  // Returns the array in the shape that a model's parameter has, or as it is if it has no such
  // form. Null: the file's tensors have the model's shapes.
  StoredArray (*fit)(const StoredArray& array, const Shape& wanted) = nullptr;
};

using StoredArrays = std::map<std::string, StoredArray>;  // by the tensors' names

// Returns the bytes of an element of a dtype's name; 0 for a name that isn't known.
int64_t SizeOfElement(std::string_view dtype);

// Copies and converts the elements into `out`, whose shape must be the array's. F64, F32, F16 and
// BF16 become any floating type; integers become any integer type that holds them. Pages of the
// file that were copied leave the process's memory, so that it never holds all values twice.
// Throws InvalidArgument that names the file and the tensor.
void ReadStoredArray(const std::string& name, const StoredArray& array, Tensor& out);

// Returns true if the sizes of the dimensions are not negative, and those other than 0 have a
// product of at most 2^48. Readers refuse other shapes, so that nothing that is computed of one
// overflows.
bool IsSensible(const Shape& shape);

// Returns the row-major strides of a shape, in elements.
std::vector<int64_t> RowMajorStrides(const Shape& shape);

// Returns text from a file as it may be printed: with ? for control characters.
std::string Printable(std::string text);

// Returns the error for a damaged file of weights: `file: what`, with a hint. `what` may hold names
// from the file.
Error BrokenWeights(const std::string& file, const std::string& what);

}  // namespace lathe
