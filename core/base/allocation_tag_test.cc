#include "lathe/core/base/allocation_tag.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"

namespace lathe {
namespace {

TEST(AllocationTag, NestsAndEnds) {
  EXPECT_EQ(CurrentAllocationTag(), "");
  EXPECT_FALSE(AllocatesState());
  {
    const AllocationTag state = AllocationTag::State("parameters");
    EXPECT_EQ(CurrentAllocationTag(), "parameters");
    EXPECT_TRUE(AllocatesState());
    {
      const AllocationTag op = AllocationTag::Op("linear");
      EXPECT_EQ(CurrentAllocationTag(), "linear (forward)");
      EXPECT_FALSE(AllocatesState());
      const AllocationTag inner = AllocationTag::Op("add");
      EXPECT_EQ(CurrentAllocationTag(), "linear (forward)") << "the outermost op asks";
      const AllocationTag scratch = AllocationTag::Buffer("scratch memory");
      EXPECT_EQ(CurrentAllocationTag(), "scratch memory in linear (forward)");
      const AllocationTag copies = AllocationTag::State("copies");
      EXPECT_EQ(CurrentAllocationTag(), "copies in linear (forward)");
      EXPECT_TRUE(AllocatesState());
    }
    std::thread([] { EXPECT_EQ(CurrentAllocationTag(), ""); }).join();
    EXPECT_EQ(CurrentAllocationTag(), "parameters");
  }
  EXPECT_EQ(CurrentAllocationTag(), "");
}

TEST(AllocationTag, KnowsPasses) {
  const AllocationTag recording = AllocationTag::Recording();
  EXPECT_EQ(CurrentAllocationTag(), "");
  const AllocationTag checkpoint = AllocationTag::Backward("checkpoint");
  EXPECT_EQ(CurrentAllocationTag(), "checkpoint (backward), recorded as a CUDA graph,");
  const AllocationTag again = AllocationTag::Recomputation();
  EXPECT_EQ(CurrentAllocationTag(), "");
  {
    const AllocationTag op = AllocationTag::Op("linear");
    EXPECT_EQ(CurrentAllocationTag(), "linear (forward, recomputed), recorded as a CUDA graph,");
  }
  const AllocationTag backward = AllocationTag::Backward("linear");
  const AllocationTag op = AllocationTag::Op("mul");
  EXPECT_EQ(CurrentAllocationTag(), "linear (backward), recorded as a CUDA graph,");
}

std::vector<std::string> heard;

// y = x. Notes the label in each pass.
struct Listener : Function {
  const char* name() const override { return "listener"; }
  Tensor Forward(const std::vector<Tensor>& x) override {
    heard.push_back(CurrentAllocationTag());
    return Scale(x[0], 1);
  }
  std::vector<Tensor> Backward(const Tensor& dy) override {
    heard.push_back(CurrentAllocationTag());
    return {dy};
  }
};

TEST(AllocationTag, FollowsTheEngine) {
  const Tensor x = Tensor::Full({3}, 1).SetRequiresGrad(true);
  const auto f = [](const Tensor& t) { return Apply<Listener>({t}); };
  Backward(Sum(f(Checkpoint(f, x))));
  EXPECT_EQ(heard, (std::vector<std::string>{
                       "listener (forward)", "listener (forward)", "listener (backward)",
                       "listener (forward, recomputed)", "listener (backward)"}));
  EXPECT_EQ(CurrentAllocationTag(), "");
}

}  // namespace
}  // namespace lathe
