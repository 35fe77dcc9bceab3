// Undoes the filters of a chunk of an HDF5 file, as the HDF5 File Format Specification defines
// them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

// The filters that HDF5 has itself; the values are HDF5's.
enum class Hdf5Filter : uint64_t { kDeflate = 1, kShuffle = 2, kFletcher32 = 3 };

// Returns the elements of a chunk with the bytes `stored`. `filters`: in the order in which the
// writer applied them. `bytes`: of the elements, each of which has `element_bytes`. Throws DataLoss
// without the file's name if they don't fit or the checksum differs.
std::string DecodeHdf5Chunk(std::string stored, const std::vector<Hdf5Filter>& filters,
                            uint64_t bytes, uint64_t element_bytes);

}  // namespace lathe
