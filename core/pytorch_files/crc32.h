// CRC-32 as zip files have it (ISO 3309: polynomial 0x04c11db7, reflected).
#pragma once

#include <cstdint>
#include <string_view>

namespace lathe {

// Crc32("123456789") is 0xcbf43926.
uint32_t Crc32(std::string_view bytes);

}  // namespace lathe
