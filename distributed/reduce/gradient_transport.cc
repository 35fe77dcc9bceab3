// The ways of gradients to the other ranks, from the host and from GPUs.

#include <algorithm>
#include <bit>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/base/error.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/tensor_kernels.h"
#include "lathe/distributed/groups/collectives.h"
#include "lathe/distributed/reduce/reducer.h"

namespace lathe {
namespace {

// Returns the rows of the table that have gradients on some rank, ascending, each once. Returns
// nullopt if some rank doesn't know its own rows (LeafGradient::rows), or if they are most of the
// rows. A collective.
std::optional<std::vector<int32_t>> UsedRows(ProcessGroup& group, const TensorImpl& table) {
  const size_t num_rows = static_cast<size_t>(table.shape[0]);
  // One bit for each row, and one that is set if this rank doesn't know its rows.
  std::vector<uint64_t> bits(num_rows / 64 + 1);
  if (const auto& rows = table.gradient().rows) {
    for (const int32_t row : *rows)
      bits[static_cast<size_t>(row) / 64] |= uint64_t{1} << (row % 64);
  } else {
    bits[num_rows / 64] |= uint64_t{1} << (num_rows % 64);
  }
  std::vector<uint64_t> all(bits.size() * static_cast<size_t>(group.size()));
  group.AllGather(std::as_bytes(std::span(bits)), std::as_writable_bytes(std::span(all)));
  for (size_t i = 0; i < all.size(); ++i) bits[i % bits.size()] |= all[i];
  if ((bits[num_rows / 64] >> (num_rows % 64) & 1) != 0) return {};
  std::vector<int32_t> rows;
  for (size_t word = 0; word < bits.size(); ++word) {
    for (uint64_t left = bits[word]; left != 0; left &= left - 1) {
      rows.push_back(static_cast<int32_t>(word * 64) + std::countr_zero(left));
    }
  }
  if (rows.size() > num_rows / 2) return {};
  return rows;
}

// Sums gradients in the host's memory, on a thread of its own while the backward pass goes on.
class HostTransport : public GradientTransport {
 public:
  HostTransport(std::shared_ptr<ProcessGroup> group, GradientBuckets& buckets,
                const ReducerOptions& options)
      : group_(std::move(group)),
        layout_(buckets),
        buckets_(buckets.buckets),
        compresses_(options.compression != "no"),
        overlap_(options.overlap) {
    ExposeGradients();
  }

  ~HostTransport() override {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      quit_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void Send(size_t bucket) override {
    if (overlap_ && !thread_.joinable()) thread_ = std::thread([this] { Work(); });
    {
      const std::lock_guard lock(mutex_);
      sent_ = bucket + 1;
    }
    changed_.notify_all();
  }

  std::vector<StepRecord> Finish(const StepRecord& mine) override {
    if (thread_.joinable()) {
      const auto wait = group_->times().MeasureWait();
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return error_ || done_ >= sent_; });
      if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    } else {
      while (done_ < sent_) Reduce(buckets_[done_++]);
    }
    std::vector<StepRecord> records = ReduceLast(mine);
    const std::lock_guard lock(mutex_);
    sent_ = done_ = 0;
    return records;
  }

 private:
  // Moves the gradients whose update is sharded into memory that the other ranks read directly.
  // They need not be copied for a reduction then.
  void ExposeGradients() {
    // Buckets [begin, end) are those of one arena.
    for (size_t begin = 0, end = 0; begin < buckets_.size(); begin = end) {
      int64_t elements = 0;
      for (; end < buckets_.size() && buckets_[end].arena == buckets_[begin].arena; ++end) {
        if (buckets_[end].num_sharded_elements > 0) elements = buckets_[end].ShardedRange().end;
      }
      if (elements == 0) continue;
      const TensorImpl& first =
          *layout_.slots[buckets_[begin].slots.front()].tensor.impl()->gradient().buffer;
      exposed_.push_back(
          group_->ExposeMemory(first.storage, elements * static_cast<int64_t>(sizeof(float))));
    }
  }

  // --- on the thread that reduces ---

  void Work() {
    CollectiveTimes::SetInBackground();
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return quit_ || (!error_ && done_ < sent_); });
      if (quit_) return;
      GradientBucket& bucket = buckets_[done_];
      lock.unlock();
      std::exception_ptr caught;
      try {
        Reduce(bucket);
      } catch (...) {
        caught = std::current_exception();
      }
      lock.lock();
      error_ = caught;
      ++done_;
      changed_.notify_all();
    }
  }

  // Reduces the whole bucket; the last bucket without its end.
  void Reduce(const GradientBucket& bucket) {
    const size_t size = bucket.grads.size() - (layout_.IsLast(bucket) ? layout_.TailOf(bucket) : 0);
    const std::span<float> values = bucket.grads.first(size);
    if (bucket.num_sharded_elements == 0) return AllReduce(values);
    compresses_ ? group_->ReduceScatterCompressed(values) : group_->ReduceScatter(values);
  }

  void AllReduce(std::span<float> values) {
    compresses_ ? group_->AllReduceCompressed(values) : group_->AllReduce(values);
  }

  // --- the last bucket, with the records ---

  // Sums the end of the last bucket, or only the rows of the last table that some rank has written.
  std::vector<StepRecord> ReduceLast(const StepRecord& mine) {
    GradientBucket& bucket = layout_.last();
    TensorImpl& tensor = layout_.last_tensor();
    std::optional<std::vector<int32_t>> rows;
    if (layout_.table_is_last) rows = UsedRows(*group_, tensor);
    std::vector<std::span<float>> pieces;
    if (rows) {
      const size_t width = static_cast<size_t>(tensor.shape[1]);
      for (const int32_t row : *rows)
        pieces.push_back(bucket.grads.subspan(static_cast<size_t>(row) * width, width));
    } else {
      Reduce(bucket);
      pieces.push_back(bucket.grads.last(layout_.TailOf(bucket)));
    }
    const size_t ranks = static_cast<size_t>(group_->size());
    staging_.clear();
    for (const std::span<float> piece : pieces)
      staging_.insert(staging_.end(), piece.begin(), piece.end());
    const size_t num_gradients = staging_.size();
    staging_.resize(num_gradients + kStepRecordFloats * ranks);
    const std::span<float> gradients = std::span(staging_).first(num_gradients);
    const std::span<float> records = std::span(staging_).subspan(num_gradients);
    const size_t own = kStepRecordFloats * static_cast<size_t>(group_->rank());
    std::ranges::copy(Pack(mine), records.subspan(own).begin());
    if (compresses_) {  // records never are
      AllReduce(gradients);
      group_->AllReduce(records);
    } else {
      group_->AllReduce(std::span(staging_));
    }
    const float* from = gradients.data();
    for (const std::span<float> piece : pieces) {
      std::copy_n(from, piece.size(), piece.begin());
      from += piece.size();
    }
    tensor.mutable_gradient().rows = std::move(rows);
    std::vector<StepRecord> all;
    for (size_t rank = 0; rank < ranks; ++rank)
      all.push_back(Unpack(records.data() + kStepRecordFloats * rank));
    return all;
  }

  const std::shared_ptr<ProcessGroup> group_;
  GradientBuckets& layout_;
  std::vector<GradientBucket>& buckets_;
  const bool compresses_, overlap_;
  std::vector<std::shared_ptr<const void>> exposed_;
  std::vector<float> staging_;

  // Buckets [done, sent) are under way.
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t sent_ = 0, done_ = 0;
  std::exception_ptr error_;
  bool quit_ = false;
  std::thread thread_;
};

// Sums gradients on GPUs, on a stream of NCCL's own while the backward pass goes on on the other
// stream. All ranks get all buckets whole.
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

  void Send(size_t bucket) override {
    const std::span<float> grads = layout_.buckets[bucket].grads;
    const auto sum = [&](auto* data) {
      device_group_->Order(compute_, device_group_->stream());
      device_group_->AllReduceDevice(data, grads.size(), ReduceOp::kSum, device_group_->stream());
    };
    if (narrow_.empty()) {
      sum(grads.data());
    } else {
      Convert(narrow_[bucket].raw_data(), DType::kBF16, grads.data(), DType::kF32, grads);
      sum(narrow_[bucket].data<BFloat16>());
    }
  }

  // Only NCCL's own stream ever waits for other ranks. If one is lost, the results that this rank
  // has computed can still be read. The host waits for that stream, so work queued afterwards sees
  // the sums.
  std::vector<StepRecord> Finish(const StepRecord& mine) override {
    Send(layout_.buckets.size() - 1);
    std::vector<StepRecord> records;
    try {
      records = GatherValues(*group_, mine);  // while the device works
    } catch (...) {
      device_group_->Stop();  // a rank is lost, and NCCL waits for it
      throw;
    }
    device_group_->WaitFor(device_group_->stream());
    for (size_t i = 0; i < narrow_.size(); ++i) {
      const std::span<float> grads = layout_.buckets[i].grads;
      Convert(grads.data(), DType::kF32, narrow_[i].raw_data(), DType::kBF16, grads);
    }
    layout_.last_tensor().mutable_gradient().rows.reset();
    return records;
  }

 private:
  static void Convert(void* to, DType to_type, const void* from, DType from_type,
                      std::span<float> grads) {
    DeviceKernels<TensorKernels>().convert(to, to_type, from, from_type, std::ssize(grads));
  }

  const std::shared_ptr<ProcessGroup> group_;
  const std::shared_ptr<NcclGroup> device_group_;
  GradientBuckets& layout_;
  void* const compute_;         // the stream of all other work
  std::vector<Tensor> narrow_;  // bf16, one for each bucket; empty: gradients travel in float32
};

}  // namespace

std::array<float, kStepRecordFloats> Pack(const StepRecord& record) {
  constexpr uint64_t kLow = (1 << 24) - 1;
  const float high = static_cast<float>(record.loss_sum);
  const bool split = std::isfinite(high);  // Inf - Inf is NaN
  const float weight = static_cast<float>(record.weight);
  return {high,
          split ? static_cast<float>(record.loss_sum - static_cast<double>(high)) : 0,
          weight,
          static_cast<float>(record.stop ? -1 - record.own_seconds : 1 + record.own_seconds),
          static_cast<float>(record.step),
          static_cast<float>(record.checksum & kLow),
          static_cast<float>(record.checksum >> 24 & kLow),
          static_cast<float>(record.weight - static_cast<double>(weight))};
}

StepRecord Unpack(const float* floats) {
  StepRecord record;
  record.loss_sum = static_cast<double>(floats[0]) + static_cast<double>(floats[1]);
  record.weight = static_cast<double>(floats[2]) + static_cast<double>(floats[7]);
  record.stop = floats[3] < 0;
  record.own_seconds = std::abs(static_cast<double>(floats[3])) - 1;
  record.step = static_cast<int64_t>(floats[4]);
  record.checksum = static_cast<uint64_t>(floats[5]) | static_cast<uint64_t>(floats[6]) << 24;
  return record;
}

std::unique_ptr<GradientTransport> MakeTransport(std::shared_ptr<ProcessGroup> group,
                                                 std::shared_ptr<NcclGroup> device_group,
                                                 GradientBuckets& buckets,
                                                 const ReducerOptions& options) {
  if (buckets.device.is_cpu())
    return std::make_unique<HostTransport>(std::move(group), buckets, options);
  return std::make_unique<DeviceTransport>(std::move(group), std::move(device_group), buckets,
                                           options);
}

}  // namespace lathe
