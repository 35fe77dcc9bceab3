// Reducer: sums the gradients in arenas over all ranks, in buckets, while the backward pass still
// makes more of them.
//
//   Reducer reducer(group, arenas, {});
//   reducer.BeforeBackward(/*reduce=*/true);
//   Backward(loss);
//   std::vector<StepRecord> records = reducer.Finish({.loss_sum = 3.5, .weight = 16});
//
// Buckets follow the arena's order, in which gradients become ready, and every rank reduces them in
// this order. Which gradients come, and in how many parts, is learned in each pass for the next; in
// the first one all buckets wait for its end. A parameter without gradient takes part with zeros.
// Of the last parameter, if it is a table, only the rows travel that some rank has used.
//
// Parameters may lie on GPUs, one for each rank: NCCL sums their gradients there, beside the
// backward pass; tables travel whole, and nothing is shared out.
//
// Where arenas are shared out, a rank gets the sums of its own stripe of each bucket only
// (core/element_range.h); the last table, or else the last bucket's end, all get.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lathe/core/element_range.h"
#include "lathe/distributed/groups/nccl/nccl_group.h"
#include "lathe/distributed/groups/process_group.h"
#include "lathe/distributed/reduce/step_record.h"
#include "lathe/nn/arena.h"

namespace lathe {

struct ReducerOptions {
  // The first bucket is small: the sooner it is full, the sooner the ranks can begin.
  int64_t first_bucket_bytes = 1 << 20, bucket_bytes = 25 << 20;
  // Reduce on a thread, or a GPU's stream, of its own during the backward pass.
  bool overlap = true;
  // "no", or "bf16": gradients travel, and are added, in bfloat16. On a GPU that takes half as much
  // memory again as they do.
  std::string compression = "no";
};

class Reducer {
 public:
  // Throws on all ranks, naming the first parameter, if they don't have the same ones.
  // `shared_out`: whether each arena is, whose gradients Tensor::grad() then refuses to show; none
  // if left out. `device_group`: for parameters on GPUs; all lie on this rank's device of it.
  Reducer(std::shared_ptr<ProcessGroup> group, std::vector<std::shared_ptr<ParameterArena>> arenas,
          ReducerOptions options, const std::vector<bool>& shared_out = {},
          std::shared_ptr<NcclGroup> device_group = nullptr);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Before every backward pass. `reduce`: in this one; gradients of passes since the last such one
  // go along. Gradients that are summed already and have not been zeroed since count once.
  void BeforeBackward(bool reduce);
  // After it: waits until all gradients are summed. Returns all ranks' records, in their order.
  std::vector<StepRecord> Finish(const StepRecord& mine);
  // Instead of Finish after an exception.
  void Abandon();
  // Before another reducer takes over: what the gradients hold counts once, not for each rank.
  void CountSumsOnce();

  // The parts of this arena (by its number) of which each rank updates a stripe; ascending. Ranks
  // have their stripes' gradients, and all of the last table's or the last bucket's end, which are
  // shared out where ranks read each other's memory: all that is trained is, there.
  std::vector<ElementRange> SharedParts(size_t arena) const;
  // Whether parameters were frozen, thawed or moved since: then another reducer is needed.
  bool Outdated() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lathe
