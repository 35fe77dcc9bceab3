// A chunk of a table in an HDF5 file that another program wrote. Lathe undoes its filters itself.
// The input begins with what the file says about the chunk: the number of filters, and each filter.
// Then come the binary logarithm of an element's bytes, and the number of elements in four bytes.
// The bytes of the chunk follow.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/data/column_files/hdf5_chunk.h"
#include "lathe/tests/fuzz/fuzzer.h"

namespace {

constexpr size_t kMostFilters = 32;
constexpr uint64_t kMostBytes = uint64_t{1} << 30;  // as Hdf5Table has it

uint8_t TakeByte(std::string_view& input) {
  if (input.empty()) throw lathe::DataLoss("the input is too short");
  const auto byte = static_cast<uint8_t>(input[0]);
  input.remove_prefix(1);
  return byte;
}

}  // namespace

void lathe::fuzz::ReadInput(std::string_view input) {
  std::vector<Hdf5Filter> filters(std::min<size_t>(TakeByte(input), kMostFilters));
  for (Hdf5Filter& filter : filters) filter = static_cast<Hdf5Filter>(TakeByte(input));
  const uint64_t element_bytes = uint64_t{1} << TakeByte(input) % 4;
  uint64_t elements = 0;
  for (int shift = 0; shift < 32; shift += 8) elements |= uint64_t{TakeByte(input)} << shift;
  const uint64_t bytes = std::min(elements, kMostBytes / element_bytes) * element_bytes;
  DecodeHdf5Chunk(std::string(input), filters, bytes, element_bytes);
}
