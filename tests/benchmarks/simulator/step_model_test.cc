// These tests use OpenMP, so none of them may fork ranks.
#include "lathe/tests/benchmarks/simulator/step_model.h"

#include <gtest/gtest.h>

#include "lathe/core/base/error.h"
#include "lathe/tests/benchmarks/simulator/recorded_call.h"

namespace lathe::simulator {
namespace {

TEST(StepModel, FasterLinksHideMore) {
  const StepWork work = WorkOf("tiny");
  ASSERT_GE(work.buckets.size(), 1u);
  EXPECT_EQ(work.vocab_size, 30522);
  // 2 layers of 4 matrices for attention and 2 for the rest, the pooler and the classifier.
  int64_t products = 0;
  for (const StepWork::Bucket& bucket : work.buckets) products += bucket.products;
  EXPECT_EQ(products, 2 * (4 * 64 * 64 + 2 * 64 * 256) + 64 * 64 + 2 * 64);
  StepModel steps(LayoutOf({2, 2}), {{.bits_per_second = 1e8}, {.bits_per_second = 1e9}},
                  {.tokens_of_rank = 1000, .flops_of_rank = 1e10});
  const std::vector<StepCost> costs = steps.Costs(work);
  const double compute = 6.0 * static_cast<double>(products) * 1000 / 1e10;
  EXPECT_GT(costs[0].seconds, costs[1].seconds);
  EXPECT_GT(costs[1].seconds, compute);
  EXPECT_GT(costs[0].in_collectives, costs[1].in_collectives);
  for (const StepCost& cost : costs) {
    EXPECT_GE(cost.hidden, 0);
    EXPECT_LE(cost.hidden, cost.in_collectives);
    EXPECT_GE(cost.seconds, compute + cost.in_collectives - cost.hidden);
  }
  EXPECT_GT(steps.bytes_of_machine(), 4 * products);  // summed and gathered, half of it each
  EXPECT_GT(steps.num_messages(), 0);
  EXPECT_THROW(WorkOf("huge"), Error);
}

TEST(StepModel, WordsOfZipfsLaw) {
  EXPECT_NEAR(ExpectedWords(100, 1), 1, 1e-9);
  EXPECT_NEAR(ExpectedWords(100, 1e6), 100, 1e-6);
  // 1 - (2/3)^2 and 1 - (1/3)^2 for words of 2/3 and 1/3.
  EXPECT_NEAR(ExpectedWords(2, 2), 1 - 1.0 / 9 + 1 - 4.0 / 9, 1e-9);
}

}  // namespace
}  // namespace lathe::simulator
