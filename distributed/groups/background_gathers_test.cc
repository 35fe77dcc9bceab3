#include "lathe/distributed/groups/background_gathers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kSize = 64;
const std::vector<ElementRange> kRanges = {{0, 16}, {16, 32}, {40, 56}};

// A tensor whose ranges get the value 1 by and by: each as soon as it is released.
struct LateTensor {
  void Begin(BackgroundGathers& gathers) {
    gathers.Begin(data, kRanges, [this](const ElementRange& range) {
      for (size_t i = 0; i < kRanges.size(); ++i) {
        if (kRanges[i].begin == range.begin) released[i].get_future().get();
      }
      for (int64_t i = range.begin; i < range.end; ++i) values[i] = 1;
      ++num_come;
    });
  }
  std::future<float> Read(int64_t begin, int64_t end) {
    return std::async(std::launch::async, [part = data.Slice(begin, end)] {
      return part.data<float>()[part.numel() - 1];
    });
  }
  std::vector<std::promise<void>> released = std::vector<std::promise<void>>(kRanges.size());
  std::atomic<int> num_come = 0;
  Tensor data = Tensor::Zeros({kSize});
  float* const values = data.data<float>();
};

bool IsReady(const std::future<float>& read) {
  return read.wait_for(milliseconds(50)) == std::future_status::ready;
}

TEST(BackgroundGathers, EachReaderWaitsForItsOwnElements) {
  CollectiveTimes times;
  LateTensor late;
  BackgroundGathers gathers(times);
  late.Begin(gathers);
  EXPECT_EQ(late.data.Slice(32, 40).data<float>()[0], 0) << "nothing comes there";
  EXPECT_EQ(late.data.Slice(56, kSize).data<float>()[0], 0);
  std::future<float> last = late.Read(40, 41), middle = late.Read(31, 33), all = late.Read(0, 64);
  EXPECT_FALSE(IsReady(last));
  late.released[0].set_value();  // the ranges come from the last to the first
  EXPECT_FALSE(IsReady(last));
  late.released[2].set_value();
  EXPECT_EQ(last.get(), 1);
  EXPECT_FALSE(IsReady(middle));
  EXPECT_FALSE(late.data.impl()->storage->arrivals()->complete());
  late.released[1].set_value();
  EXPECT_EQ(middle.get(), 0);
  EXPECT_EQ(all.get(), 0);
  gathers.WaitForAll();
  EXPECT_TRUE(late.data.impl()->storage->arrivals()->complete());
  EXPECT_EQ(late.num_come, 3);
}

TEST(BackgroundGathers, AnErrorReachesWhoNeedsWhatIsMissing) {
  CollectiveTimes times;
  LateTensor late;
  {
    BackgroundGathers gathers(times);
    late.Begin(gathers);
    late.released[2].set_value();
    late.released[1].set_exception(std::make_exception_ptr(InvalidArgument("lost")));
    gathers.WaitForAll();
  }
  EXPECT_EQ(late.num_come, 1);
  EXPECT_EQ(late.data.Slice(40, 56).data<float>()[15], 1);
  for (int i = 0; i < 2; ++i) {
    try {
      late.data.Slice(0, 1).data<float>();
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.message(), "lost");
    }
  }
  const std::shared_ptr<Arrivals> arrivals = late.data.impl()->storage->arrivals();
  late.data.impl()->storage->Unshare();  // takes what is there
  EXPECT_EQ(late.data.ToVector<float>()[55], 1);
  EXPECT_FALSE(arrivals->complete());
}

TEST(BackgroundGathers, OneAfterTheOther) {
  CollectiveTimes times;
  LateTensor first, second;
  {
    BackgroundGathers gathers(times);
    first.Begin(gathers);
    second.Begin(gathers);
    for (std::promise<void>& each : second.released) each.set_value();
    std::future<float> read = second.Read(0, 64);
    EXPECT_FALSE(IsReady(read));
    EXPECT_EQ(second.num_come, 0);
    first.data = Tensor();  // the gathers keep what they fill
    for (std::promise<void>& each : first.released) each.set_value();
    EXPECT_EQ(read.get(), 0);
  }
  EXPECT_EQ(first.num_come, 3);
  EXPECT_EQ(second.num_come, 3);
  EXPECT_EQ(times.seconds().exposed(), times.seconds().all) << "nothing was a collective here";
}

}  // namespace
}  // namespace lathe
