// Sums gradients in the host's memory, on a thread of its own while the backward pass goes on.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "lathe/distributed/reduce/gradient_transport.h"
#include "lathe/distributed/reduce/used_rows.h"

namespace lathe {
namespace {

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

  void Begin() override {
    if (overlap_ && !thread_.joinable()) thread_ = std::thread([this] { Work(); });
  }

  void Send() override {
    {
      const std::lock_guard lock(mutex_);
      ++sent_;
    }
    changed_.notify_all();
  }

  std::vector<StepRecord> Finish(const StepRecord& mine) override {
    if (thread_.joinable()) {
      WaitForThread();
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

  void WaitForThread() {
    const CollectiveTimes::Wait wait(group_->times());
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return error_ || done_ >= sent_; });
    if (!error_) return;
    std::rethrow_exception(std::exchange(error_, nullptr));
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

  std::vector<StepRecord> ReduceLast(const StepRecord& mine) {
    GradientBucket& bucket = layout_.last();
    const size_t size = static_cast<size_t>(group_->size());
    std::vector<float> records(kStepRecordFloats * size);
    const auto packed = Pack(mine);
    std::copy(packed.begin(), packed.end(),
              records.begin() + static_cast<std::ptrdiff_t>(kStepRecordFloats) * group_->rank());
    if (!layout_.table_is_last || !ReduceRows(records)) {
      const size_t tail = layout_.TailOf(bucket);
      const std::span<float> end = bucket.grads.last(tail);
      Reduce(bucket);
      staging_.assign(end.begin(), end.end());
      staging_.insert(staging_.end(), records.begin(), records.end());
      ReduceStaging(records.size());
      std::copy_n(staging_.begin(), tail, end.begin());
      layout_.last_tensor().mutable_gradient().rows.reset();
      std::copy(staging_.end() - std::ssize(records), staging_.end(), records.begin());
    }
    std::vector<StepRecord> all;
    for (size_t rank = 0; rank < size; ++rank)
      all.push_back(Unpack(records.data() + kStepRecordFloats * rank));
    return all;
  }

  // Gradients may be compressed; records never are.
  void ReduceStaging(size_t num_records) {
    if (!compresses_) return group_->AllReduce(std::span(staging_));
    const std::span<float> all(staging_);
    AllReduce(all.first(all.size() - num_records));
    group_->AllReduce(all.last(num_records));
  }

  // Sums only the rows that some rank has written. Returns false if the whole table must travel.
  bool ReduceRows(std::vector<float>& records) {
    TensorImpl& table = layout_.last_tensor();
    const size_t width = static_cast<size_t>(table.shape[1]), row_bytes = width * sizeof(float);
    std::optional<std::vector<int32_t>> used = UsedRows(*group_, table);
    if (!used) return false;
    const std::vector<int32_t>& rows = *used;
    float* grad = layout_.last().grads.data();
    staging_.resize(rows.size() * width + records.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(staging_.data() + i * width, grad + static_cast<size_t>(rows[i]) * width,
                  row_bytes);
    }
    std::copy(records.begin(), records.end(), staging_.end() - std::ssize(records));
    ReduceStaging(records.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(grad + static_cast<size_t>(rows[i]) * width, staging_.data() + i * width,
                  row_bytes);
    }
    std::copy(staging_.end() - std::ssize(records), staging_.end(), records.begin());
    table.mutable_gradient().rows = std::move(used);
    return true;
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

}  // namespace

std::unique_ptr<GradientTransport> MakeHostTransport(std::shared_ptr<ProcessGroup> group,
                                                     GradientBuckets& buckets,
                                                     const ReducerOptions& options) {
  return std::make_unique<HostTransport>(std::move(group), buckets, options);
}

}  // namespace lathe
