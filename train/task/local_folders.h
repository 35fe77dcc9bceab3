// The folders of the models that a run reads.
#pragma once

#include <map>
#include <string>

#include "lathe/distributed/accelerator.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

struct LocalModels {
  FinetuneArguments options;
  std::map<std::string, std::string> hub_commits;  // of the models from a Hub, by their names
};

// Returns the options with a folder in place of each model's name, and fetches what the cache
// lacks. All ranks use the commit that rank 0 has found; one rank of each cache fetches a file
// while the others wait. Throws NotFound, naming the option, for what is neither a folder nor a
// name.
LocalModels WithLocalFolders(const FinetuneArguments& options, Accelerator& accelerator);

}  // namespace lathe
