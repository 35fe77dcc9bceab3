// Tells which ranks of a job see the output folder of the main process.
#pragma once

#include <string>
#include <vector>

#include "lathe/distributed/accelerator.h"

namespace lathe {

// Returns the ranks that don't see what the main process writes into its folder, lowest first. All
// ranks call it together, and the main process's `folder` counts. It writes a hidden file there and
// removes it. Returns none if it can't write there, which other checks tell.
std::vector<int> RanksWithoutFolder(Accelerator& accelerator, const std::string& folder);

}  // namespace lathe
