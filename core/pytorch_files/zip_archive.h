// A zip file whose members are stored, not compressed: the container of PyTorch's files. Members
// are used where they lie in the mapped file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace lathe {

struct ZipMember {
  std::string_view bytes;
  uint32_t crc32 = 0;  // as the file says
};

// Returns the members of a zip file by name. `bytes` is the whole file, and `file` its name for
// messages. Reads the zip64 form, too. Throws BrokenWeights for a file that the format forbids or
// whose members overlap, InvalidArgument for compressed or encrypted members. Checks no CRC-32.
std::map<std::string, ZipMember> ReadZipArchive(std::string_view bytes, const std::string& file);

// Returns true if a file that starts with `bytes` is meant to be a zip file.
bool IsZipArchive(std::string_view bytes);

}  // namespace lathe
