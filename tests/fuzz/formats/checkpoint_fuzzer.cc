// A file of a checkpoint that was damaged after it was saved. The manifest's digest must show that
// before HDF5 reads the file. So the reader of the file sees only the bytes that were saved.
#include <cstdlib>
#include <filesystem>
#include <string>

#include "lathe/core/base/file.h"
#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/core/checkpoint/state_file.h"
#include "lathe/tests/fuzz/fuzzer.h"
#include "lathe/tests/fuzz/states.h"

void lathe::fuzz::ReadInput(std::string_view input) {
  static const std::string saved = [] {
    CheckpointDraft draft(ScratchFolder(), "checkpoint-1");
    WriteStateFile(draft.path() + "/optimizer.h5", SomeState());
    const std::string bytes = ReadFile(draft.path() + "/optimizer.h5");
    draft.Commit({.step = 1});
    return bytes;
  }();
  const std::string file = ScratchFile("checkpoint-1/optimizer.h5", input);
  OpenCheckpoint(ScratchFolder() + "/checkpoint-1");
  if (input != saved) std::abort();  // damage was not seen
  ReadStateFile(file);
}
