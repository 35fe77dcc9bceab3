// Shares the parameters' bfloat16 copies for products (core/ops/cast.h) among ranks of a machine
// that share the parameters. One copy then serves all of them.
#pragma once

#include "lathe/distributed/groups/process_group.h"
#include "lathe/nn/arena.h"

namespace lathe {

// A collective, to be called when no rank writes to the parameters. The arena's values lie in
// memory that all ranks have in common (ProcessGroup::ShareMemory). The copies that some rank has
// of them move into such memory. From then on each rank's Optimizer::Step writes its stripes.
// Copies that can't be shared stay as they are.
void ShareLowPrecisionCopies(ProcessGroup& group, ParameterArena& arena);

}  // namespace lathe
