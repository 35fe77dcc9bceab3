// The function that libFuzzer calls with each input.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "lathe/core/base/error.h"
#include "lathe/tests/fuzz/fuzzer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    lathe::fuzz::ReadInput({reinterpret_cast<const char*>(data), size});
  } catch (const lathe::Error& e) {
    // The reader has refused the input. It must say why. Other exceptions end the program.
    if (e.message().empty()) std::abort();
  }
  return 0;
}
