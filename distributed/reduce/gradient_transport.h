// Sums the gradients of a reducer's buckets over all ranks, on the host or on GPUs.
#pragma once

#include <memory>
#include <vector>

#include "lathe/distributed/groups/nccl/nccl_group.h"
#include "lathe/distributed/groups/process_group.h"
#include "lathe/distributed/reduce/gradient_buckets.h"
#include "lathe/distributed/reduce/step_record.h"

namespace lathe {

class GradientTransport {
 public:
  virtual ~GradientTransport() = default;
  // Starts to send the next bucket, in the buckets' order; never the last one. Sending may go on
  // beside the backward pass, which must leave these gradients alone from now on.
  virtual void Send() = 0;
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

}  // namespace lathe
