// Reducer: sums the gradients in arenas over all ranks, in buckets, while the backward pass still
// computes more of them.
//
//   Reducer reducer(group, arenas, {});
//   reducer.BeforeBackward(/*reduce=*/true);
//   Backward(loss);
//   std::vector<StepRecord> records = reducer.Finish({.loss_sum = 3.5, .weight = 16});
//
// Buckets follow the arena's order, in which gradients become ready, and every rank reduces them in
// this order. Each pass learns which gradients come, and in how many parts, for the next pass. In
// the first pass all buckets wait for its end. A parameter without a gradient takes part with
// zeros. If the last parameter is a table, only the rows travel that some rank has used.
//
// Parameters may lie on GPUs, one for each rank. NCCL then sums their gradients there, beside the
// backward pass. Tables travel whole, and no update is sharded.
//
// If an update is sharded, each rank updates a stripe of each bucket (core/base/element_range.h)
// and gets the sums of that stripe only. The exception is the last table or, without one, the end
// of the last bucket: all ranks get these sums.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lathe/core/base/element_range.h"
#include "lathe/distributed/groups/nccl/nccl_group.h"
#include "lathe/distributed/groups/process_group.h"
#include "lathe/distributed/reduce/step_record.h"
#include "lathe/nn/arena.h"

namespace lathe {

struct ReducerOptions {
  // The first bucket is small: the sooner it is full, the sooner the ranks can begin.
  int64_t first_bucket_bytes = 1 << 20, bucket_bytes = 25 << 20;
  // True to reduce during the backward pass, on a thread or a GPU stream of its own.
  bool overlap = true;
  // "no", or "bf16": gradients travel in bfloat16. On the CPU only those do that travel between
  // machines, and they are added in float32 (ProcessGroup::AllReduceCompressed). On GPUs all do and
  // are added in bfloat16, and the bfloat16 copies take half as much memory again as the gradients.
  std::string compression = "no";
};

class Reducer {
 public:
  // Throws on all ranks if their parameters differ; the error names the first that does. `sharded`:
  // for each arena, true if its update is sharded; Tensor::grad() then refuses to show its
  // gradients. An empty vector means that none is. `device_group`: for parameters on GPUs; all
  // parameters lie on this rank's device of the group.
  Reducer(std::shared_ptr<ProcessGroup> group, std::vector<std::shared_ptr<ParameterArena>> arenas,
          ReducerOptions options, const std::vector<bool>& sharded = {},
          std::shared_ptr<NcclGroup> device_group = nullptr);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Call it before every backward pass. `reduce`: true to sum the gradients in this pass, with
  // those of earlier passes that were not summed. Gradients that are summed already, and have not
  // been zeroed, count once.
  void BeforeBackward(bool reduce);
  // Call it after the backward pass. Waits until all gradients are summed. Returns all ranks'
  // records, in the order of ranks.
  std::vector<StepRecord> Finish(const StepRecord& mine);
  // Call it instead of Finish after an exception.
  void Abandon();
  // Call it before another reducer takes over: what the gradients hold then counts once, not once
  // for each rank.
  void CountSumsOnce();

  // Returns the sharded ranges of arena number `arena` in ascending order. Each rank updates one
  // stripe of each range, and has the summed gradients of its stripes alone. All ranks have the
  // gradients outside of the ranges: those of the last table, or of the end of the last bucket. If
  // the ranks read each other's memory, the ranges cover all that is trained.
  std::vector<ElementRange> ShardedRanges(size_t arena) const;
  // Returns true if parameters were frozen, thawed or moved since the construction. Another reducer
  // is needed then.
  bool IsOutdated() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lathe
