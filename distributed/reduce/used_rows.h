// Finds the rows of a table that have gradients on some rank.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lathe/core/tensor.h"
#include "lathe/distributed/groups/process_group.h"

namespace lathe {

// Returns these rows, ascending, each once. Returns nullopt if some rank doesn't know its own rows
// (LeafGradient::rows), or if they are most of the rows. A collective.
std::optional<std::vector<int32_t>> UsedRows(ProcessGroup& group, const TensorImpl& table);

}  // namespace lathe
