// The command that this program was started with, and the one that goes on where it was stopped.
#pragma once

#include <string>

namespace lathe {

// Returns this process's command line, or its launcher's if it has one. A shell reads it as it was
// given. --resume_from_checkpoint and options that hold tokens are left out. So are the values of
// the launcher's variables and options whose names stand for secrets (apps/cli/secret_names.h), as
// in `sudo HF_TOKEN=...` and `wrapper --api-key ...`.
std::string OwnCommand();

// Returns the last line of an interrupted training: the command that goes on from the checkpoint.
// If several processes run and their launcher's command is not known, tells what to add to it. An
// empty checkpoint means that there is none.
std::string HowToGoOn(const std::string& checkpoint, int num_processes);

}  // namespace lathe
