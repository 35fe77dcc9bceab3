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

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "lathe/core/base/element_range.h"
#include "lathe/distributed/groups/nccl/nccl_group.h"
#include "lathe/distributed/groups/process_group.h"
#include "lathe/distributed/reduce/gradient_buckets.h"
#include "lathe/nn/arena.h"

namespace lathe {

// The record that each rank adds to an exchange of gradients. Numbers arrive as they were sent,
// also a NaN or an infinity. So the loss sum tells if this rank's part of the loss is finite.
struct StepRecord {
  double loss_sum = 0, weight = 0;  // these two with 48 bits
  bool stop = false;                // somebody has asked this rank to stop
  int64_t step = 0;                 // its step, below 2^24
  uint64_t checksum = 0;            // 48 bits
  double own_seconds = 0;           // of the step in which it didn't wait for others, at least 0
};

// Pack a record as floats that a sum with zeros leaves as they are, and unpack it.
constexpr size_t kStepRecordFloats = 8;
std::array<float, kStepRecordFloats> Pack(const StepRecord& record);
StepRecord Unpack(const float* floats);

// Sums the gradients of a reducer's buckets over all ranks, on the host or on GPUs.
class GradientTransport {
 public:
  virtual ~GradientTransport() = default;
  // Starts to send a bucket, in the buckets' order; never the last one. Sending may go on beside
  // the backward pass, which must leave these gradients alone from now on.
  virtual void Send(size_t bucket) = 0;
  // Called after the pass, when all buckets but the last have been sent. Sends the last one and
  // waits until all are summed. Returns all ranks' records, in the order of ranks. Afterwards
  // LeafGradient::rows of the last table is right for the sums.
  virtual std::vector<StepRecord> Finish(const StepRecord& mine) = 0;
};

// Gradients on the host travel through `group`. Those on GPUs travel through `device_group`, and
// their records through `group`. `buckets` must outlive the transport. Sums replace the gradients
// in place. If a bucket's update is sharded, a rank gets its stripe only.
std::unique_ptr<GradientTransport> MakeTransport(std::shared_ptr<ProcessGroup> group,
                                                 std::shared_ptr<NcclGroup> device_group,
                                                 GradientBuckets& buckets,
                                                 const ReducerOptions& options);

class Reducer {
 public:
  // Throws on all ranks if their parameters differ; the error names the first that does. `sharded`:
  // for each arena, true if its update is sharded; Tensor::grad() then refuses to show its
  // gradients. An empty vector means that none is. `device_group`: for parameters on GPUs; all
  // parameters lie on this rank's device of the group.
  Reducer(std::shared_ptr<ProcessGroup> group, std::vector<std::shared_ptr<ParameterArena>> arenas,
          const ReducerOptions& options, const std::vector<bool>& sharded = {},
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
  // Moves the values of arena number `arena` into memory that all ranks have in common
  // (ProcessGroup::ShareMemory). So do the bfloat16 copies for products (core/ops/cast.h) that some
  // rank has of them. One copy then serves all ranks, and each rank's Optimizer::Step writes its
  // stripes. What can't be shared stays as it is. A collective, to be called when no rank writes to
  // the parameters.
  void ShareValues(size_t arena);
  // Returns true if parameters in the arenas, or the given ones, were frozen or thawed since the
  // construction, or if the arenas have moved. Another reducer is needed then.
  bool IsOutdated(const std::vector<Parameter>& parameters) const;

 private:
  void CountSumOnce(const GradientBucket& bucket);
  void OnReady(size_t slot);
  void MaterializeGradients();
  void Send();

  const std::shared_ptr<ProcessGroup> group_;
  const std::vector<std::shared_ptr<ParameterArena>> arenas_;
  const ReducerOptions options_;
  GradientBuckets layout_;
  std::vector<GradientSlot>& slots_ = layout_.slots;
  std::vector<GradientBucket>& buckets_ = layout_.buckets;
  std::unique_ptr<GradientTransport> transport_;
  size_t sent_ = 0;  // the number of buckets sent in this pass
  bool armed_ = false;
  bool broken_ = false;  // true in a pass, and after one that failed
  bool summed_ = false;  // true if the gradients are sums over all ranks
};

}  // namespace lathe
