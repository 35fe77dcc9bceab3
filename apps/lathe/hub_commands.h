// `lathe download`: fetches models from the Hub. `lathe cache`: lists and deletes what was fetched.
#pragma once

#include <string>
#include <vector>

namespace lathe {

// Run the command with its arguments. Return the exit code.
int RunDownload(const std::vector<std::string>& args);
int RunCache(const std::vector<std::string>& args);

}  // namespace lathe
