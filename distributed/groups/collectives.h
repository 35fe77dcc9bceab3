// Collectives for tensors and strings, built on those of a process group. Every rank makes the same
// call, with tensors that fit each other. Each call first compares their shapes and dtypes, and
// throws on all ranks, naming both, if they don't fit.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/tensor.h"
#include "lathe/distributed/groups/process_group.h"

namespace lathe {

// Returns the rows of all ranks, in the order of ranks: [n_r, ...] -> [sum of n_r, ...]. A scalar
// counts as one row.
Tensor Gather(ProcessGroup& group, const Tensor& tensor);

// Returns a new tensor: the elementwise sum (or mean, max, min) over ranks of tensors of one shape.
// Floats of fewer than 32 bits are added as float32, integers as int64. A mean of integers is an
// error.
Tensor Reduce(ProcessGroup& group, const Tensor& tensor, const std::string& reduction = "sum");

// Grows dimension `dim` to its longest among the ranks, with pad_index after (or before) the
// present values. A negative `dim` counts from the end. Returns the tensor unchanged if it has no
// such dimension.
Tensor PadAcrossProcesses(ProcessGroup& group, const Tensor& tensor, int dim = 0,
                          double pad_index = 0, bool pad_first = false);

// Sets the tensor to that of rank `root`.
void Broadcast(ProcessGroup& group, Tensor tensor, int root = 0);

// Returns each rank's value, in the order of ranks. Its bytes travel, so it holds no pointers.
template <typename T>
std::vector<T> GatherValues(ProcessGroup& group, const T& mine) {
  std::vector<T> all(static_cast<size_t>(group.size()));
  group.AllGather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}
// Returns each rank's string, in the order of ranks.
std::vector<std::string> GatherStrings(ProcessGroup& group, const std::string& mine);

// Throws FailedPrecondition on all ranks if a rank's values differ from rank 0's. The message has
// the first difference: `[what] rank 1 has learning_rate 3e-05 but rank 0 has learning_rate 5e-05`.
// A long value is cut to the text around the difference.
using NamedValues = std::vector<std::pair<std::string, std::string>>;
void CheckSame(ProcessGroup& group, const char* what, const NamedValues& mine,
               const std::string& hint);

}  // namespace lathe
