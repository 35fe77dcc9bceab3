// Reads --mixed_precision and its short forms --bf16 and --fp16, for every command that has them.
#pragma once

#include <optional>
#include <string>

#include "lathe/apps/cli/flags.h"

namespace lathe {

// Returns no, bf16 or fp16, as the given options say; nullopt if none was given. Throws
// InvalidArgument if they contradict each other.
std::optional<std::string> GivenPrecision(const FlagTable& flags,
                                          const std::string& mixed_precision, bool bf16, bool fp16);

}  // namespace lathe
