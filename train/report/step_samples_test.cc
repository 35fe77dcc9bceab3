#include "lathe/train/report/step_samples.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace lathe {
namespace {

TEST(StepSamples, KeepMeansOfEquallyMany) {
  StepSamples samples;
  EXPECT_TRUE(samples.Points("a").x.empty());
  for (int64_t step = 1; step <= 400; ++step) samples.Add(step, static_cast<double>(step % 2));
  EXPECT_EQ(samples.Points("a").x.size(), 400u);
  samples.Add(400, 7);             // the same step again
  samples.Add(401, std::nan(""));  // a step that was skipped
  for (int64_t step = 402; step <= 404; ++step) samples.Add(step, 3);
  const Series points = samples.Points("a");
  EXPECT_EQ(points.name, "a");
  ASSERT_EQ(points.x.size(), 202u);
  EXPECT_EQ(points.x[0], 1.5);
  EXPECT_EQ(points.y[0], 0.5);
  EXPECT_EQ(points.x[200], 402.5);
  EXPECT_EQ(points.x[201], 404);
  EXPECT_EQ(points.y[201], 3);
  for (int64_t step = 405; step <= 100'000; ++step) samples.Add(step, 3);
  EXPECT_LE(samples.Points("a").x.size(), 400u);
  EXPECT_GT(samples.Points("a").x.size(), 200u);
}

}  // namespace
}  // namespace lathe
