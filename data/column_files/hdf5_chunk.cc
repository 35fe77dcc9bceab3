#include "lathe/data/column_files/hdf5_chunk.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/checkpoint/fletcher32.h"

namespace lathe {
namespace {

constexpr uint64_t kChecksumBytes = 4;
constexpr uint64_t kMostRatio = 1032;  // of deflate

// Early versions of HDF5 swapped the bytes of each half, and it still reads such files.
bool HasChecksum(uint32_t found, uint32_t computed) {
  const uint32_t swapped = (computed & 0x00ff00ff) << 8 | (computed >> 8 & 0x00ff00ff);
  return found == computed || found == swapped;
}

void RemoveChecksum(std::string& data) {
  if (data.size() < kChecksumBytes) throw DataLoss("a chunk is too short");
  const uint64_t size = data.size() - kChecksumBytes;
  uint32_t stored;
  std::memcpy(&stored, data.data() + size, sizeof stored);
  if (!HasChecksum(stored, Fletcher32(data.data(), size)))
    throw DataLoss("a chunk has another checksum");
  data.resize(size);
}

std::string Inflate(const std::string& data, uint64_t bytes) {
  // A damaged size must not cost the memory of a sound one.
  if (bytes / kMostRatio > data.size())
    throw DataLoss("the compressed data of a chunk are too few");
  std::string plain(bytes, '\0');
  uLongf size = bytes;
  const int result =
      uncompress(reinterpret_cast<Bytef*>(plain.data()), &size,
                 reinterpret_cast<const Bytef*>(data.data()), static_cast<uLong>(data.size()));
  if (result != Z_OK || size != bytes) throw DataLoss("the compressed data of a chunk are damaged");
  return plain;
}

// Byte k of element i lies in place k * n + i. Bytes behind the last whole element stay in place.
std::string Unshuffle(const std::string& data, uint64_t element_bytes) {
  std::string plain = data;
  const uint64_t n = data.size() / element_bytes;
  for (uint64_t k = 0; k < element_bytes; ++k) {
    for (uint64_t i = 0; i < n; ++i) plain[i * element_bytes + k] = data[k * n + i];
  }
  return plain;
}

}  // namespace

std::string DecodeHdf5Chunk(std::string stored, const std::vector<Hdf5Filter>& filters,
                            uint64_t bytes, uint64_t element_bytes) {
  for (size_t i = filters.size(); i-- > 0;) {
    switch (filters[i]) {
      case Hdf5Filter::kFletcher32:
        RemoveChecksum(stored);
        break;
      case Hdf5Filter::kDeflate: {
        const auto checksums = std::count(
            filters.begin(), filters.begin() + static_cast<ptrdiff_t>(i), Hdf5Filter::kFletcher32);
        stored = Inflate(stored, bytes + static_cast<uint64_t>(checksums) * kChecksumBytes);
        break;
      }
      case Hdf5Filter::kShuffle:
        stored = Unshuffle(stored, element_bytes);
        break;
      default:
        throw DataLoss("a chunk has an unknown filter");
    }
  }
  if (stored.size() != bytes) throw DataLoss("a chunk has a wrong size");
  return stored;
}

}  // namespace lathe
