// What a confined child may answer about a file of HDF5, for the fuzzer of such answers.
#pragma once

#include <cstddef>
#include <string>

namespace lathe::fuzz {

// The bytes of the file that the answers are about. They hold no HDF5, which only the child reads.
inline std::string NumbersFile() {
  std::string bytes(4096, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i % 64);
  return bytes;
}

}  // namespace lathe::fuzz
