// The command that goes on where this program was stopped.
#pragma once

#include <string>

namespace lathe {

// Returns this process's command line, or its launcher's if it has one, with
// --resume_from_checkpoint CHECKPOINT at the end. A shell reads it as it was given.
std::string CommandToResume(const std::string& checkpoint);

}  // namespace lathe
