// Parameters' copies in bfloat16 for products (core/ops/cast.h) where the processes of a machine
// have the parameters in common: one copy serves all, too.
#pragma once

#include "lathe/distributed/groups/process_group.h"
#include "lathe/nn/arena.h"

namespace lathe {

// A collective, when nobody writes to the parameters. The arena's values lie in memory that all
// ranks have in common (ProcessGroup::ShareMemory); the copies that some rank has of them move into
// such memory. From then on Optimizer::Step has each rank write its part. Nothing changes for
// copies that can't be shared.
void ShareCopies(ProcessGroup& group, ParameterArena& arena);

}  // namespace lathe
