// Collectives of tensors and strings, built on a process group's. Every rank calls the same with
// tensors that fit each other: each call compares them first and throws on all ranks, naming them,
// if they don't.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lathe/core/tensor.h"
#include "lathe/distributed/groups/process_group.h"

namespace lathe {

// Rows of all ranks, in their order: [n_r, ...] -> [sum of n_r, ...]. A scalar counts as one row.
Tensor Gather(ProcessGroup& group, const Tensor& tensor);

// The elementwise sum over ranks (or mean, max, min) of tensors of one shape, in a new tensor.
// Floats below 32 bits are added as float32, integers as int64; a mean of integers is an error.
Tensor Reduce(ProcessGroup& group, const Tensor& tensor, const std::string& reduction = "sum");

// Grows dimension `dim` to the longest among the ranks, with pad_index behind (or before) what is
// there. A negative one counts from the end. Unchanged if the tensor has no such dimension.
Tensor PadAcrossProcesses(ProcessGroup& group, const Tensor& tensor, int dim = 0,
                          double pad_index = 0, bool pad_first = false);

// tensor = that of rank `root`.
void Broadcast(ProcessGroup& group, Tensor tensor, int root = 0);

// Each rank's string.
std::vector<std::string> GatherStrings(ProcessGroup& group, const std::string& mine);

// Throws FailedPrecondition on all ranks if a rank's values differ from rank 0's, with the first
// that does: `[what] rank 1 has learning_rate 3e-05 but rank 0 has learning_rate 5e-05`; of long
// values it shows where they part.
using NamedValues = std::vector<std::pair<std::string, std::string>>;
void CheckSame(ProcessGroup& group, const char* what, const NamedValues& mine,
               const std::string& hint);

}  // namespace lathe
