// The command that this program was started with, and the one that goes on where it was stopped.
#pragma once

#include <string>

namespace lathe {

// Returns this process's command line, or its launcher's if it has one, without
// --resume_from_checkpoint and --token. A shell reads it as it was given.
std::string OwnCommand();

// Returns OwnCommand with --resume_from_checkpoint CHECKPOINT at the end.
std::string CommandToResume(const std::string& checkpoint);

}  // namespace lathe
