// Checks that every backend's process group must pass.
#pragma once

#include <cstddef>

#include "lathe/distributed/groups/process_group.h"

namespace lathe {

// Makes each of the group's collectives, with small data and with `most` elements, and expects
// exact results. Expects, too, that the group refuses arguments that don't fit. A collective: all
// ranks call it with the same `most`.
void CheckCollectives(ProcessGroup& group, size_t most);

}  // namespace lathe
