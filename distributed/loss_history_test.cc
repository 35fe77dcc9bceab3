#include "lathe/distributed/loss_history.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

// Runs on the device with which the test is linked, which may be the host.
class LossHistoryTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  }
  static Tensor Loss(double value) { return Tensor::Full({}, value, DType::kF32, CheckedDevice()); }
  static bool OnHost() { return CheckedDevice().is_cpu(); }
};

TEST_F(LossHistoryTest, StepsAreWeightedMeans) {
  LossHistory history;
  EXPECT_TRUE(std::isnan(history.Last()));
  EXPECT_TRUE(history.Take().empty());
  history.Add(Loss(1), 1);
  history.Add(Loss(2), 3);
  EXPECT_EQ(history.Sum(), 7);
  history.SetResult(4);
  EXPECT_EQ(history.Last(), 1.75);
  history.Add(Loss(5), 4);  // another loss of the same batch
  history.SetResult(8);
  EXPECT_EQ(history.Last(), 27.0 / 8);
  history.CloseStep();
  EXPECT_EQ(history.Last(), 27.0 / 8);
  history.Add(Loss(3), 1);
  history.CloseStep();  // no result, as for gradients that were not exchanged
  history.SetLoss(0.5);
  history.CloseStep();
  EXPECT_EQ(history.Take(), (std::vector<double>{27.0 / 8, 0.5}));
  EXPECT_TRUE(history.Take().empty());
  EXPECT_EQ(history.Last(), 0.5);
}

TEST_F(LossHistoryTest, KeepsTheLastOnes) {
  LossHistory history;
  for (int64_t i = 0; i < LossHistory::kMost + 10; ++i) {
    history.Add(Loss(static_cast<double>(i)), 1);
    history.Add(Loss(static_cast<double>(i + 2)), 1);
    history.SetResult(2);
    history.CloseStep();
    if (i == 5) {
      EXPECT_EQ(history.Last(), 6);
    }
  }
  const std::vector<double> taken = history.Take();
  ASSERT_EQ(std::ssize(taken), LossHistory::kMost);
  for (size_t i = 0; i < taken.size(); ++i) ASSERT_EQ(taken[i], static_cast<double>(i + 11));
}

TEST_F(LossHistoryTest, LossesThatAreNotFiniteShowOnTheDevice) {
  for (const int64_t passes : {1, 3, 300, 1500}) {
    SCOPED_TRACE(passes);
    for (const int64_t bad : {int64_t{-1}, int64_t{0}, passes / 2, passes - 1}) {
      LossHistory history;
      for (int step = 0; step < 3; ++step) {
        for (int64_t i = 0; i < passes; ++i) {
          history.Add(Loss(step == 2 && i == bad ? HUGE_VAL : 1), 1);
        }
        history.SetResult(static_cast<double>(passes));
        history.CloseStep();
        const Tensor there = history.LastOnDevice();
        ASSERT_EQ(there.defined(), !OnHost());
        if (OnHost()) continue;
        EXPECT_EQ(there.device(), CheckedDevice());
        bool finite = true;
        for (const float loss : there.ToVector<float>()) finite = finite && std::isfinite(loss);
        EXPECT_EQ(finite, step < 2 || bad < 0);
      }
      const std::vector<double> taken = history.Take();
      ASSERT_EQ(taken.size(), 3u);
      EXPECT_EQ(taken[0], 1);
      EXPECT_EQ(taken[1], 1);
      EXPECT_EQ(taken[2], bad < 0 ? 1 : HUGE_VAL);
    }
  }
}

}  // namespace
}  // namespace lathe
