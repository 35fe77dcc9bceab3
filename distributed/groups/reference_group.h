// The slowest process group: files in a folder that all ranks see. What it computes is plain to
// see, so tests compare the others with it.
#pragma once

#include <memory>
#include <string>

#include "lathe/distributed/groups/process_group.h"

namespace lathe {

// `folder` is empty at first and the job's own. Sums are taken in the order of ranks, in double or
// int64. Nobody notices a rank that is lost.
std::shared_ptr<ProcessGroup> MakeReferenceGroup(int rank, int size, const std::string& folder);

}  // namespace lathe
