// Sums gradients on GPUs, one for each rank. NCCL sums buckets on a stream of its own while the
// backward pass goes on on the other stream. All ranks get all buckets whole.
#include <utility>

#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/base/error.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/tensor_kernels.h"
#include "lathe/distributed/groups/collectives.h"
#include "lathe/distributed/reduce/gradient_transport.h"

namespace lathe {
namespace {

class DeviceTransport : public GradientTransport {
 public:
  DeviceTransport(std::shared_ptr<ProcessGroup> group, std::shared_ptr<NcclGroup> device_group,
                  GradientBuckets& buckets, const ReducerOptions& options)
      : group_(std::move(group)),
        device_group_(std::move(device_group)),
        layout_(buckets),
        compute_(BackendOf(buckets.device).WorkQueue()) {
    Check(device_group_ != nullptr, "reducer", "gradients on ", ToString(buckets.device),
          " need an NCCL group");
    Check(device_group_->device() == buckets.device.index, "reducer", "parameters lie on ",
          ToString(buckets.device), " but this process's GPU is cuda:", device_group_->device());
    if (options.compression == "no") return;
    const AllocationTag allocation_tag =
        AllocationTag::State("gradients in bfloat16 for other processes");
    // Each bucket has a bfloat16 buffer of its own, since NCCL reads one while the next is filled.
    for (const GradientBucket& bucket : layout_.buckets) {
      narrow_.push_back(Tensor::Empty({std::ssize(bucket.grads)}, DType::kBF16, buckets.device));
    }
  }

  void Send() override {
    const std::span<float> grads = layout_.buckets[sent_].grads;
    const bool narrow = !narrow_.empty();
    if (narrow) Convert(narrow_[sent_].raw_data(), DType::kBF16, grads.data(), DType::kF32, grads);
    device_group_->Order(compute_, device_group_->stream());
    if (narrow) {
      device_group_->AllReduceDevice(narrow_[sent_].data<BFloat16>(), grads.size(), ReduceOp::kSum,
                                     device_group_->stream());
    } else {
      device_group_->AllReduceDevice(grads.data(), grads.size(), ReduceOp::kSum,
                                     device_group_->stream());
    }
    ++sent_;
  }

  // Only NCCL's own stream ever waits for other ranks. If one is lost, the results that this rank
  // has computed can still be read. The host waits for that stream, so work queued afterwards sees
  // the sums.
  std::vector<StepRecord> Finish(const StepRecord& mine) override {
    Send();
    std::vector<StepRecord> records = GatherRecords(mine);  // while the device works
    device_group_->WaitFor(device_group_->stream());
    for (size_t i = 0; i < narrow_.size(); ++i) {
      const std::span<float> grads = layout_.buckets[i].grads;
      Convert(grads.data(), DType::kF32, narrow_[i].raw_data(), DType::kBF16, grads);
    }
    layout_.last_tensor().mutable_gradient().rows.reset();
    sent_ = 0;
    return records;
  }

 private:
  static void Convert(void* to, DType to_type, const void* from, DType from_type,
                      std::span<float> grads) {
    DeviceKernels<TensorKernels>().convert(to, to_type, from, from_type, std::ssize(grads));
  }

  std::vector<StepRecord> GatherRecords(const StepRecord& mine) try {
    return GatherValues(*group_, mine);
  } catch (...) {
    device_group_->Stop();  // a rank is lost, and NCCL waits for it
    throw;
  }

  const std::shared_ptr<ProcessGroup> group_;
  const std::shared_ptr<NcclGroup> device_group_;
  GradientBuckets& layout_;
  void* const compute_;         // the stream of all other work
  std::vector<Tensor> narrow_;  // bf16, one for each bucket; empty: gradients travel in float32
  size_t sent_ = 0;
};

}  // namespace

std::unique_ptr<GradientTransport> MakeDeviceTransport(std::shared_ptr<ProcessGroup> group,
                                                       std::shared_ptr<NcclGroup> device_group,
                                                       GradientBuckets& buckets,
                                                       const ReducerOptions& options) {
  return std::make_unique<DeviceTransport>(std::move(group), std::move(device_group), buckets,
                                           options);
}

}  // namespace lathe
