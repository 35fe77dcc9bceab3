// Runs finetune for a few steps with checkpoints, for tests of what they hold and of resumes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/checkpoint/checkpoint_folder.h"

namespace lathe {

using Args = std::vector<std::string>;

inline bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class ResumeTest : public LaunchedTest {
 protected:
  // Returns the command line of finetune in one thread for 12 steps into `out`, with `more`.
  Args Command(const std::string& out, const Args& more) const {
    Args args = Finetune(out, {"--num_threads", "1", "--max_steps", "12"});
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  RunResult Run(const Args& command, const RunOptions& options = {}) const {
    return RunProgram(command[0], {command.begin() + 1, command.end()}, options);
  }
  // Returns the steps of the checkpoints in `out`, lowest first.
  std::vector<int64_t> StepsIn(const std::string& out) const {
    std::vector<int64_t> steps;
    for (const NumberedFolder& folder : ListNumberedFolders(Path(out), "checkpoint-"))
      steps.push_back(folder.number);
    return steps;
  }
};

}  // namespace lathe
