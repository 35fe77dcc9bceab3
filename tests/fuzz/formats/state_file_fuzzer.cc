// A state file in HDF5, read without the look at its digest that a checkpoint's reader begins with.
// Libhdf5 itself is not safe against changed files, so this finds faults of the library, too.
#include <string>

#include "lathe/core/checkpoint/state_file.h"
#include "lathe/tests/fuzz/fuzzer.h"

void lathe::fuzz::ReadInput(std::string_view input) {
  ReadStateFile(ScratchFile("optimizer.h5", input));
}
