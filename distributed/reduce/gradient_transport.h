// How the gradients of a reducer's buckets become sums over all ranks: on the host, or on GPUs.
#pragma once

#include <memory>
#include <vector>

#include "lathe/distributed/groups/nccl/nccl_group.h"
#include "lathe/distributed/groups/process_group.h"
#include "lathe/distributed/reduce/gradient_buckets.h"
#include "lathe/distributed/reduce/reducer.h"
#include "lathe/distributed/reduce/step_record.h"

namespace lathe {

class GradientTransport {
 public:
  virtual ~GradientTransport() = default;
  // Before a pass whose gradients travel.
  virtual void Begin() {}
  // The gradients of the next of the buckets, in their order, but not of the last one: takes them
  // on their way, perhaps beside the backward pass, which leaves them alone from now on.
  virtual void Send() = 0;
  // After the pass, when all buckets but the last are sent: sends that, waits until all are summed,
  // and returns all ranks' records, in their order. What is known of the last table's rows
  // (TensorImpl::grad_rows) is true then.
  virtual std::vector<StepRecord> Finish(const StepRecord& mine) = 0;
};

// `buckets` outlives them. Sums arrive in place, by stripes where buckets are shared out.
std::unique_ptr<GradientTransport> MakeHostTransport(std::shared_ptr<ProcessGroup> group,
                                                     GradientBuckets& buckets,
                                                     const ReducerOptions& options);
// Gradients go through `device_group`, records through `group`.
std::unique_ptr<GradientTransport> MakeDeviceTransport(std::shared_ptr<ProcessGroup> group,
                                                       std::shared_ptr<NcclGroup> device_group,
                                                       GradientBuckets& buckets,
                                                       const ReducerOptions& options);

}  // namespace lathe
