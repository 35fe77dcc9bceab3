// The slowest process group: it uses files in a folder that all ranks see. Its computations are
// plain to see, so tests compare the other groups with it.
#pragma once

#include <memory>
#include <string>

#include "lathe/distributed/groups/process_group.h"

namespace lathe {

// `folder` is empty at first and belongs to this job. Sums are taken in the order of ranks, in
// double or int64. No rank notices that another is lost.
std::shared_ptr<ProcessGroup> MakeReferenceGroup(int rank, int size, const std::string& folder);

}  // namespace lathe
