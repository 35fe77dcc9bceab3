#include "lathe/distributed/groups/background_gathers.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

namespace lathe {

class BackgroundGathers::Work : public Arrivals {
 public:
  Work(CollectiveTimes& times, int64_t offset, std::vector<ElementRange> ranges)
      : times_(times), offset_(offset), ranges_(std::move(ranges)), num_left_(ranges_.size()) {}

  void Run(const std::function<void(const ElementRange&)>& gather) {
    CollectiveTimes::SetInBackground();
    std::exception_ptr caught;
    while (num_left_ > 0 && caught == nullptr) {
      try {
        gather(ranges_[num_left_ - 1]);
      } catch (...) {
        caught = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      error_ = caught;
      if (caught == nullptr) --num_left_;
      changed_.notify_all();
    }
  }

  void Await(int64_t begin, int64_t end) override {
    constexpr int64_t kBytes = sizeof(float);
    const auto first = std::ranges::find_if(ranges_, [&](const ElementRange& range) {
      return (offset_ + range.end) * kBytes > begin && (offset_ + range.begin) * kBytes < end;
    });
    if (first == ranges_.end()) return;
    const auto index = static_cast<size_t>(first - ranges_.begin());
    if (num_left_ <= index) return;  // it has come, and so have all behind it
    std::unique_lock lock(mutex_);
    if (num_left_ > index && error_ == nullptr) {
      const auto wait = times_.MeasureWait();
      changed_.wait(lock, [&] { return num_left_ <= index || error_ != nullptr; });
    }
    if (num_left_ > index) std::rethrow_exception(error_);
  }
  void AwaitEnd() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_left_ == 0 || error_ != nullptr; });
  }
  bool complete() const override { return num_left_ == 0; }

 private:
  CollectiveTimes& times_;  // lives as long as something is under way
  const int64_t offset_;    // of element 0 in the storage
  const std::vector<ElementRange> ranges_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<size_t> num_left_;  // so many ranges, the first ones, have not come yet
  std::exception_ptr error_;
};

void BackgroundGathers::Begin(const Tensor& data, std::vector<ElementRange> ranges,
                              std::function<void(const ElementRange&)> gather) {
  const auto work = std::make_shared<Work>(times_, data.impl()->offset, std::move(ranges));
  // The thread keeps the storage until all is there. The storage keeps the work.
  last_ = std::async(std::launch::async, [work, kept = data, gather = std::move(gather),
                                          before = std::move(last_)]() mutable {
            if (before.valid()) std::exchange(before, {}).wait();
            work->Run(std::exchange(gather, nullptr));
            kept = Tensor();
          }).share();
  data.impl()->storage->SetArrivals(work);
}

void BackgroundGathers::WaitForAll() {
  if (!last_.valid() || last_.wait_for(std::chrono::seconds(0)) == std::future_status::ready)
    return;
  const auto wait = times_.MeasureWait();
  last_.wait();
}

}  // namespace lathe
