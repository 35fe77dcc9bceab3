// The group of a job of one rank. Its collectives copy at most.
#pragma once

#include <memory>

#include "lathe/distributed/groups/process_group.h"

namespace lathe {

std::shared_ptr<ProcessGroup> MakeSingleGroup();

}  // namespace lathe
