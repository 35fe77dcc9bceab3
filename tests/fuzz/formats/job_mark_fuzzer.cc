// The mark of a job in its output folder. What can't be read is another job's.
#include <filesystem>
#include <stdexcept>
#include <string>

#include "lathe/tests/fuzz/fuzzer.h"
#include "lathe/train/checkpoint/job_mark.h"
#include "lathe/train/support/output_dir.h"

void lathe::fuzz::ReadInput(std::string_view input) {
  const std::string path = ScratchFile(kJobMark, input);
  // No corpus holds this process's own launcher.
  if (IsOwnFolder(std::filesystem::path(path).parent_path()))
    throw std::logic_error("a mark of another job was taken for this one's");
}
