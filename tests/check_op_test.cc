// Shows that CheckOp finds the faults that it is there for.
#include "lathe/tests/check_op.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"

namespace lathe {
namespace {

using OpFunction = std::function<Tensor(const Tensors&)>;

// Returns, as text, the failures that CheckOp reports if `op` computes x[0] * x[1].
std::string FaultsOf(const OpFunction& op, bool with_composed = false) {
  testing::TestPartResultArray results;
  {
    testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    OpCase op_case{.name = "mul", .op = op, .shapes = {{{2, 3}, {2, 3}}}};
    if (with_composed) op_case.composed = [](const Tensors& x) { return Mul(x[0], x[1]); };
    CheckOp(op_case);
  }
  std::string faults;
  for (int i = 0; i < results.size(); ++i) faults += results.GetTestPartResult(i).message();
  return faults;
}

// Returns a b, with the gradients that `backward` gives.
Tensor MulWith(const Tensors& x, BackwardFunction backward) {
  const Tensor y = Mul(x[0].Detach(), x[1].Detach());
  return Record("mul", y, x, {}, std::move(backward));
}

TEST(CheckOp, PassesARightOp) {
  EXPECT_EQ(FaultsOf([](const Tensors& x) { return Mul(x[0], x[1]); }, true), "");
}

TEST(CheckOp, FindsAWrongValue) {
  const auto off = [](const Tensors& x) { return Mul(Scale(x[0], 1.001), x[1]); };
  EXPECT_NE(FaultsOf(off, true).find("float32 value"), std::string::npos);
}

TEST(CheckOp, FindsAWrongGradient) {
  const auto off = [](const Tensors& x) {
    return MulWith(x, [a = x[0].Detach(), b = x[1].Detach()](BackwardContext& context) {
      context.SetGrad(0, Mul(context.grad_output(), b));
      context.SetGrad(1, Scale(Mul(context.grad_output(), a), 1.001));
    });
  };
  EXPECT_NE(FaultsOf(off).find("central differences of input 1"), std::string::npos);
}

TEST(CheckOp, FindsAMissingGradient) {
  const auto off = [](const Tensors& x) {
    return MulWith(x, [b = x[1].Detach()](BackwardContext& context) {
      context.SetGrad(0, Mul(context.grad_output(), b));
    });
  };
  EXPECT_NE(FaultsOf(off).find("input 1 got no gradient"), std::string::npos);
}

// The op assigns to a leaf's buffer where it must add.
TEST(CheckOp, FindsAnOverwrittenLeafGradient) {
  const auto off = [](const Tensors& x) {
    return MulWith(x, [a = x[0].Detach(), b = x[1].Detach()](BackwardContext& context) {
      Tensor leaf = context.LeafGrad(0);
      const Tensor da = Mul(context.grad_output(), b);
      if (leaf.defined()) {
        leaf.CopyFrom(da);
      } else {
        context.SetGrad(0, da);
      }
      context.SetGrad(1, Mul(context.grad_output(), a));
    });
  };
  EXPECT_NE(FaultsOf(off).find("two passes gradient of input 0"), std::string::npos);
}

TEST(CheckOp, FindsAModifiedInput) {
  const auto off = [](const Tensors& x) {
    const Tensor y = Mul(x[0], x[1]);
    if (y.dtype() == DType::kF32) x[0].data<float>()[0] += 1;
    return y;
  };
  EXPECT_NE(FaultsOf(off).find("input 0 was modified"), std::string::npos);
}

TEST(CheckOp, FindsALostNaN) {
  const auto off = [](const Tensors& x) {
    Tensor y = Mul(x[0], x[1]);
    if (y.dtype() == DType::kF32) {
      for (float& v : y.values<float>()) v = v != v ? 0 : v;
    }
    return y;
  };
  EXPECT_NE(FaultsOf(off).find("NaN in input 0"), std::string::npos);
}

TEST(CheckOp, FindsAnOverflow) {
  const auto off = [](const Tensors& x) {  // overflows float32 on the way
    const Tensor huge = Scale(Mul(x[0], x[1]), 1e35);
    return Scale(huge, 1e-35);
  };
  EXPECT_NE(FaultsOf(off, true).find("magnitude 10000"), std::string::npos);
}

}  // namespace
}  // namespace lathe
