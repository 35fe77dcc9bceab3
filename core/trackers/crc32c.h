// CRC-32C (Castagnoli), the checksum of RFC 3720 and of TensorFlow's record files.
#pragma once

#include <cstdint>
#include <string_view>

namespace lathe {

// Returns the checksum of the bytes, with the polynomial 0x1EDC6F41.
uint32_t Crc32c(std::string_view bytes);

// Returns the checksum as record files store it: rotated and shifted, so that the checksum of bytes
// that hold checksums stays strong. The formula is that of TensorFlow's record_writer.h.
uint32_t MaskedCrc32c(std::string_view bytes);

}  // namespace lathe
