// Fletcher's checksum as HDF5's filter computes it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lathe {

// Returns the checksum of 16-bit words with their high byte first. An odd last byte is such a high
// byte. HDF5 stores it behind a chunk, low byte first.
uint32_t Fletcher32(const void* data, size_t bytes);

}  // namespace lathe
