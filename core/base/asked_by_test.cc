#include "lathe/core/base/asked_by.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"

namespace lathe {
namespace {

TEST(AskedBy, NestsAndEnds) {
  EXPECT_EQ(WhoAsks(), "");
  EXPECT_FALSE(AskedForState());
  {
    const AskedBy state = AskedBy::State("parameters");
    EXPECT_EQ(WhoAsks(), "parameters");
    EXPECT_TRUE(AskedForState());
    {
      const AskedBy op = AskedBy::Op("linear");
      EXPECT_EQ(WhoAsks(), "linear (forward)");
      EXPECT_FALSE(AskedForState());
      const AskedBy inner = AskedBy::Op("add");
      EXPECT_EQ(WhoAsks(), "linear (forward)") << "the outermost op asks";
      const AskedBy scratch = AskedBy::Buffer("scratch memory");
      EXPECT_EQ(WhoAsks(), "scratch memory in linear (forward)");
      const AskedBy copies = AskedBy::State("copies");
      EXPECT_EQ(WhoAsks(), "copies in linear (forward)");
      EXPECT_TRUE(AskedForState());
    }
    std::thread([] { EXPECT_EQ(WhoAsks(), ""); }).join();
    EXPECT_EQ(WhoAsks(), "parameters");
  }
  EXPECT_EQ(WhoAsks(), "");
}

TEST(AskedBy, KnowsPasses) {
  const AskedBy recording = AskedBy::Recording();
  EXPECT_EQ(WhoAsks(), "");
  const AskedBy checkpoint = AskedBy::Backward("checkpoint");
  EXPECT_EQ(WhoAsks(), "checkpoint (backward), recorded as a CUDA graph,");
  const AskedBy again = AskedBy::Recomputation();
  EXPECT_EQ(WhoAsks(), "");
  {
    const AskedBy op = AskedBy::Op("linear");
    EXPECT_EQ(WhoAsks(), "linear (forward, recomputed), recorded as a CUDA graph,");
  }
  const AskedBy backward = AskedBy::Backward("linear");
  const AskedBy op = AskedBy::Op("mul");
  EXPECT_EQ(WhoAsks(), "linear (backward), recorded as a CUDA graph,");
}

std::vector<std::string> heard;

// y = x. Notes the label in each pass.
struct Listener : Function {
  const char* name() const override { return "listener"; }
  Tensor Forward(const std::vector<Tensor>& x) override {
    heard.push_back(WhoAsks());
    return Scale(x[0], 1);
  }
  std::vector<Tensor> Backward(const Tensor& dy) override {
    heard.push_back(WhoAsks());
    return {dy};
  }
};

TEST(AskedBy, FollowsTheEngine) {
  const Tensor x = Tensor::Full({3}, 1).SetRequiresGrad(true);
  const auto f = [](const Tensor& t) { return Apply<Listener>({t}); };
  Backward(Sum(f(Checkpoint(f, x))));
  EXPECT_EQ(heard, (std::vector<std::string>{
                       "listener (forward)", "listener (forward)", "listener (backward)",
                       "listener (forward, recomputed)", "listener (backward)"}));
  EXPECT_EQ(WhoAsks(), "");
}

}  // namespace
}  // namespace lathe
