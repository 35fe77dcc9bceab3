// A compressed file, of the format that the extension of LATHE_FUZZ_FILE tells.
#include <string>

#include "lathe/data/table_files/text_stream.h"
#include "lathe/tests/fuzz/fuzzer.h"

void lathe::fuzz::ReadInput(std::string_view input) {
  // In blocks, because a few bytes may be compressed gigabytes.
  TextStream stream(ScratchFile(LATHE_FUZZ_FILE, input));
  std::string block(1 << 16, '\0');
  while (stream.Read(block.data(), block.size()) > 0) {
  }
}
