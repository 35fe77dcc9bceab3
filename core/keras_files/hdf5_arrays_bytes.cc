// Arrays of an HDF5 file as bytes: numbers of 64 bits, and texts as their length and their bytes.
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/keras_files/hdf5_arrays.h"

namespace lathe {
namespace {

void Put(std::string& bytes, uint64_t number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}
void Put(std::string& bytes, const std::string& text) {
  Put(bytes, text.size());
  bytes += text;
}

void Put(std::string& bytes, const std::vector<uint64_t>& numbers) {
  Put(bytes, numbers.size());
  for (const uint64_t number : numbers) Put(bytes, number);
}

std::string_view Get(std::string_view& bytes, uint64_t size) {
  if (size > bytes.size()) throw DataLoss("its reader's answer is cut off");
  const std::string_view taken = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return taken;
}
uint64_t GetNumber(std::string_view& bytes) {
  uint64_t number;
  std::memcpy(&number, Get(bytes, sizeof number).data(), sizeof number);
  return number;
}
std::vector<uint64_t> GetNumbers(std::string_view& bytes) {
  std::vector<uint64_t> numbers;
  for (uint64_t n = GetNumber(bytes); n > 0; --n) numbers.push_back(GetNumber(bytes));
  return numbers;
}
std::string GetText(std::string_view& bytes) {
  const uint64_t size = GetNumber(bytes);
  return std::string(Get(bytes, size));
}

}  // namespace

std::string Serialize(const std::vector<Hdf5Array>& arrays) {
  std::string bytes;
  Put(bytes, arrays.size());
  for (const Hdf5Array& array : arrays) {
    Put(bytes, array.name);
    Put(bytes, array.has_model);
    Put(bytes, array.dtype);
    Put(bytes, array.dims.size());
    for (const uint64_t dim : array.dims) Put(bytes, dim);
    Put(bytes, array.is_copied);
    Put(bytes, array.offset);
    Put(bytes, array.chunk_dims);
    Put(bytes, array.filters);
    Put(bytes, array.chunks.size());
    for (const Hdf5Chunk& chunk : array.chunks) {
      Put(bytes, chunk.offset);
      Put(bytes, chunk.size);
      Put(bytes, chunk.skipped);
    }
  }
  return bytes;
}

std::vector<Hdf5Array> Deserialize(std::string_view bytes) {
  std::vector<Hdf5Array> arrays;
  for (uint64_t n = GetNumber(bytes); n > 0; --n) {
    Hdf5Array& array = arrays.emplace_back();
    array.name = GetText(bytes);
    array.has_model = GetNumber(bytes) != 0;
    array.dtype = GetText(bytes);
    for (uint64_t rank = GetNumber(bytes); rank > 0; --rank) {
      array.dims.push_back(GetNumber(bytes));
    }
    array.is_copied = GetNumber(bytes) != 0;
    array.offset = GetNumber(bytes);
    array.chunk_dims = GetNumbers(bytes);
    array.filters = GetNumbers(bytes);
    for (uint64_t chunks = GetNumber(bytes); chunks > 0; --chunks) {
      Hdf5Chunk& chunk = array.chunks.emplace_back();
      chunk.offset = GetNumber(bytes);
      chunk.size = GetNumber(bytes);
      chunk.skipped = GetNumber(bytes);
    }
  }
  if (!bytes.empty()) throw DataLoss("its reader's answer is too long");
  return arrays;
}

}  // namespace lathe
