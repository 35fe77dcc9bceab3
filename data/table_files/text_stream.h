// TextStream: the bytes of a data file, which are decompressed if its name ends in .gz or .zst.
//
//   TextStream stream("train.csv.gz");
//   std::string block(1 << 20, '\0');
//   while (const size_t size = stream.Read(block.data(), block.size())) ...
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace lathe {

// Returns the path without .gz or .zst at its end, in small or capital letters.
std::string WithoutCompression(const std::string& path);

// Makes more bytes out of those of a file. The only ones are of text_stream.cc.
class Decompressor;

class TextStream {
 public:
  // Throws FileError if the file can't be opened.
  explicit TextStream(const std::string& path);
  ~TextStream();
  TextStream(const TextStream&) = delete;
  TextStream& operator=(const TextStream&) = delete;

  // Reads at most `size` bytes, which is above 0. Returns how many; 0 at the end only. Throws
  // FileError, and DataLoss for compressed data that are damaged or cut short.
  size_t Read(char* to, size_t size);

  // Reads all that is left.
  std::string ReadAll();

 private:
  std::string path_;
  int fd_ = -1;
  std::unique_ptr<Decompressor> decompressor_;  // null for a plain file
};

}  // namespace lathe
