#include "lathe/core/autograd.h"

#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/core/ops/shape.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

Tensor Leaf(const std::vector<float>& values) {
  return Tensor::FromVector(values).SetRequiresGrad(true);
}

using Floats = std::vector<float>;

TEST(Autograd, UndefinedTensorsAreAnError) {
  EXPECT_THROW(Backward(Tensor()), Error);
  EXPECT_THROW(Scale(Tensor(), 2), Error);
  EXPECT_THROW(Add(Leaf({1}), Tensor()), Error);
}

TEST(Autograd, NoGradGuardRecordsNothing) {
  const Tensor x = Leaf({1, 2});
  {
    NoGradGuard guard;
    EXPECT_FALSE(GradEnabled());
    { NoGradGuard nested; }
    EXPECT_FALSE(GradEnabled());
    EXPECT_FALSE(Mul(x, x).requires_grad());
  }
  EXPECT_TRUE(GradEnabled());
  EXPECT_TRUE(Mul(x, x).requires_grad());
  EXPECT_THROW(Backward(Tensor::Zeros({})), Error);
}

TEST(Autograd, InPlaceChangeOfASavedTensorIsAnError) {
  Tensor x = Leaf({1, 2}), other = Leaf({3, 4});
  Tensor y = Sum(Mul(x, other));
  x.Fill(5);
  EXPECT_THROW(Backward(y), Error);
  y = Sum(Add(x, other));  // saves nothing
  x.Fill(6);
  EXPECT_NO_THROW(Backward(y));
}

TEST(Autograd, DiamondAndRepeatedLeaf) {
  Tensor x = Leaf({1, 2, 3});
  const Tensor square = Mul(x, x);
  const Tensor y = Add(Mul(square, x), Add(square, x));  // x^3 + x^2 + x
  Backward(Sum(y));
  EXPECT_EQ(x.grad().ToVector<float>(), (Floats{6, 17, 34}));
}

TEST(Autograd, GradientsAddUp) {
  Tensor x = Leaf({1, 2});
  Backward(Sum(x));
  const Tensor grad = x.grad();
  Backward(Sum(Scale(x, 2)));
  EXPECT_EQ(grad.ToVector<float>(), (Floats{3, 3}));  // in the same buffer
  Backward(x, Tensor::FromVector<float>({1, 1}));     // a leaf is its own graph
  EXPECT_EQ(grad.ToVector<float>(), (Floats{4, 4}));
}

// Two consumers get the same gradient tensor. Adding to one's must not change the other's.
TEST(Autograd, SharedGradientsAreNotOverwritten) {
  Tensor x = Leaf({1}), z = Leaf({1});
  const Tensor a = Scale(x, 1), b = Scale(z, 1);
  const Tensor sum = Add(a, b);
  Backward(Sum(Add(sum, Scale(a, 10))));
  EXPECT_EQ(x.grad().Item(), 11);
  EXPECT_EQ(z.grad().Item(), 1);
  Tensor w = Leaf({1});
  const Tensor given = Tensor::FromVector<float>({2});
  const Tensor c = Scale(w, 1);
  Backward(Add(c, c), given);
  EXPECT_EQ(given.Item(), 2);
  EXPECT_EQ(w.grad().Item(), 4);
}

TEST(Autograd, ReadingAGradientChangesNothing) {
  Tensor x = Leaf({1, 2}), unused = Leaf({1});
  const int64_t before = TensorMemory().now;
  EXPECT_FALSE(x.grad().defined());
  EXPECT_EQ(TensorMemory().now, before);
  Backward(Sum(x));
  LeafGradient& gradient = x.impl()->mutable_gradient();
  gradient.scale = 0.5f;
  gradient.rows = std::vector<int32_t>{0, 1};
  EXPECT_EQ(x.grad().ToVector<float>(), (Floats{0.5f, 0.5f}));
  EXPECT_EQ(gradient.scale, 0.5f);
  EXPECT_EQ(gradient.rows, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(Tensor(gradient.buffer).ToVector<float>(), (Floats{1, 1}));
  EXPECT_EQ(x.MaterializeGrad().ToVector<float>(), (Floats{0.5f, 0.5f}));
  EXPECT_EQ(gradient.scale, 1);
  EXPECT_FALSE(gradient.rows.has_value());
  EXPECT_EQ(x.grad().raw_data(), Tensor(gradient.buffer).raw_data());
  gradient.is_stale = true;
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(gradient.is_stale);
  EXPECT_THROW(x.grad().ToVector<float>(), Error);
  EXPECT_THROW(x.grad().Item(), Error);
  EXPECT_EQ(x.MaterializeGrad().ToVector<float>(), (Floats{0, 0}));
  EXPECT_EQ(unused.impl()->leaf_gradient, nullptr);
  EXPECT_EQ(unused.MaterializeGrad().ToVector<float>(), Floats{0});
}

TEST(Autograd, HookFiresOnceAfterAllParts) {
  Tensor x = Leaf({1, 2}), unused = Leaf({1});
  int fired = 0;
  Floats seen;
  x.impl()->mutable_gradient().on_ready = [&, impl = x.impl().get()] {
    ++fired;
    seen = Tensor(impl->gradient().buffer).ToVector<float>();
  };
  unused.impl()->mutable_gradient().on_ready = [] { FAIL(); };
  Backward(Sum(Add(Mul(x, x), Scale(Exp(Scale(x, 0)), 1))));
  EXPECT_EQ(fired, 1);
  EXPECT_EQ(seen, (Floats{2, 4}));
  Backward(Sum(x));
  EXPECT_EQ(fired, 2);
}

TEST(Autograd, WalkingTwiceIsAnError) {
  Tensor x = Leaf({1, 2});
  const Tensor square = Mul(x, x), y = Sum(square);
  Backward(y);
  EXPECT_THROW(Backward(y), Error);
  EXPECT_THROW(Backward(Sum(square)), Error);  // shares a node that was freed
}

TEST(Autograd, GradientMustFit) {
  const Tensor y = Mul(Leaf({1, 2}), Leaf({1, 2}));
  EXPECT_THROW(Backward(y), Error);  // not a scalar
  EXPECT_THROW(Backward(y, Tensor::Zeros({3})), Error);
}

TEST(Autograd, BroadcastingIsUndone) {
  Tensor row = Leaf({1, 2, 3}), scalar = Tensor::Full({}, 2).SetRequiresGrad(true);
  const Tensor matrix = Tensor::Full({2, 3}, 1);
  Backward(Sum(Mul(Add(matrix, row), scalar)));
  EXPECT_EQ(row.grad().ToVector<float>(), (Floats{4, 4, 4}));
  EXPECT_EQ(scalar.grad().Item(), 18);
  EXPECT_EQ(scalar.grad().shape(), Shape{});
}

TEST(Autograd, OnlyNeededGradientsAreComputed) {
  Tensor x = Leaf({1}), frozen = Tensor::Full({1}, 3);
  bool called = false, needs_frozen = true;
  const auto op = [&](const Tensor& a, const Tensor& b) {
    return Record("op", Tensor::Full({1}, 0), {a, b}, {}, [&](BackwardContext& context) {
      called = true;
      needs_frozen = context.NeedsInputGrad(1);
      context.SetGrad(0, context.grad_output());
      context.SetGrad(1, context.grad_output());  // ignored
    });
  };
  EXPECT_FALSE(op(frozen, frozen).requires_grad());
  Backward(op(x, frozen));
  EXPECT_TRUE(called);
  EXPECT_FALSE(needs_frozen);
  EXPECT_FALSE(frozen.grad().defined());
  EXPECT_EQ(x.grad().Item(), 1);
}

constexpr int kDeep = 200000;

TEST(Autograd, DeepChainIsWalkedWithoutRecursion) {
  Tensor x = Leaf({1});
  Tensor y = x;
  for (int i = 0; i < kDeep; ++i) y = Add(y, x);
  Backward(y);
  EXPECT_EQ(x.grad().Item(), kDeep + 1);
}

TEST(Autograd, DeepChainIsDroppedWithoutRecursion) {
  Tensor x = Leaf({1});
  Tensor y = x;
  for (int i = 0; i < kDeep; ++i) y = Add(y, x);
}

struct Keep : Function {  // saves its input with its record
  Tensor Forward(const Tensors& x) override {
    Save({x[0]});
    return x[0].Clone();
  }
  Tensors Backward(const Tensor& dy) override { return {dy}; }
};

TEST(Autograd, DeepChainOfSavedInputsIsDroppedWithoutRecursion) {
  for (bool walk : {false, true}) {
    Tensor x = Leaf({1});
    Tensor y = x;
    for (int i = 0; i < kDeep; ++i) y = Apply<Keep>({y});
    if (walk) Backward(y);
  }
}

TEST(Autograd, SomebodyLooksAfterEachOp) {
  const Tensor x = Leaf({1});
  int ops = 0;
  SetAfterOpHook([&] {
    if (++ops == 4) throw std::runtime_error("enough");
  });
  const Tensor y = Add(x, x);
  EXPECT_EQ(ops, 1);
  Backward(y);
  {
    const NoGradGuard no_grad;
    Add(Add(x, x), x);
  }
  EXPECT_EQ(ops, 3);
  EXPECT_THROW(Add(x, x), std::runtime_error);
  SetAfterOpHook(nullptr);
  Add(x, x);
  EXPECT_EQ(ops, 4);
}

// A value that no backward pass reads is freed as soon as no other code holds it.
TEST(Autograd, GraphsKeepNoValues) {
  constexpr int64_t kBytes = int64_t{1} << 20;
  const Tensor x = Tensor::Full({kBytes / 4}, 1).SetRequiresGrad(true);
  const int64_t before = TensorMemory().now;
  Tensor y = x;
  for (int i = 0; i < 8; ++i) y = Scale(Add(y, x), 0.5);
  EXPECT_NEAR(static_cast<double>(TensorMemory().now - before), kBytes, 8192);
  Backward(y, Tensor::Full(y.shape(), 1));
  EXPECT_NEAR(x.grad().ToVector<float>()[3], 1, 1e-6);
}

// PyTorch's methods of these names record a gradient. Here it would be cut off in silence.
TEST(Autograd, OpsRefuseWhatHasNoRecord) {
  Tensor x = Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2});
  x.SetRequiresGrad(true);
  const auto use = [](const Tensor& y) { Mul(y, y); };
  for (const Tensor& y :
       {x.Slice(0, 1), x.Reshape({4}), x.Clone(), x.To(DType::kBF16).To(DType::kF32),
        Scale(x, 2).Slice(0, 1).Reshape({2})}) {
    try {
      use(y);
      FAIL() << y.shape();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_EQ(
          e.message(),
          "[mul] input 0 comes from a tensor that needs a gradient, by a member of Tensor that "
          "records none: Slice, Reshape, Clone or To");
      EXPECT_TRUE(e.hint().starts_with("call the op Slice, Reshape or Cast instead")) << e.hint();
    }
    EXPECT_FALSE(y.requires_grad());
    EXPECT_GT(y.ToVector<float>().size(), 0u);  // reading is no harm
    use(y.Detach());
    const NoGradGuard no_grad;
    use(y);
  }
  use(x.Detach().Reshape({4}));
  use(x.To(DType::kF32));  // x itself
  use(x.Clone().SetRequiresGrad(true));
  use(Reshape(x, {4}));
  {
    const NoGradGuard no_grad;
    x = x.Clone();
  }
  use(x);
}

}  // namespace
}  // namespace lathe
