// User-defined functions, and functions that a backward pass computes again.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/core/ops/shape.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

Tensor Leaf(const std::vector<float>& values) {
  return Tensor::FromVector(values).SetRequiresGrad(true);
}

struct CubeSum : Function {
  const char* name() const override { return "cube_sum"; }
  Tensor Forward(const Tensors& x) override {
    Save({x[0], x[1]});
    return Mul(Mul(x[0], x[0]), Add(x[0], x[1]));
  }
  Tensors Backward(const Tensor& dy) override {  // a^3 + a^2 b
    const Tensor &a = saved(0), &b = saved(1), square = Mul(a, a);
    return {Mul(dy, Add(Scale(square, 3), Scale(Mul(a, b), 2))), Mul(dy, square)};
  }
};

TEST(Autograd, UserDefinedFunction) {
  CheckOp({.name = "cube_sum",
           .op =
               [](const Tensors& x) {
                 return Apply<CubeSum>({x[0], x[1]});
               },
           .composed = [](const Tensors& x) { return Mul(Mul(x[0], x[0]), Add(x[0], x[1])); },
           .shapes = {{{3, 2}, {3, 2}}, {{0}, {0}}}});
}

struct TooFew : Function {
  Tensor Forward(const Tensors& x) override { return x[0]; }  // passes its input through
  Tensors Backward(const Tensor&) override { return {}; }
};

struct Exponential : Function {
  Tensor Forward(const Tensors& x) override {
    const Tensor y = Exp(x[0]);
    Save({y});
    return y;
  }
  Tensors Backward(const Tensor& dy) override { return {Mul(dy, saved(0))}; }
};

TEST(Autograd, UserDefinedFunctionMaySaveItsOutput) {
  constexpr int64_t kElements = int64_t{1} << 18;
  Tensor x = Tensor::Full({kElements}, 0.5).SetRequiresGrad(true);
  const int64_t before = TensorMemory().now;
  for (int i = 0; i < 3; ++i) Apply<Exponential>({Scale(x, 2)});  // a graph that is never walked
  EXPECT_LT(TensorMemory().now - before, 4096);
  const Tensor y = Apply<Exponential>({Scale(x, 2)});
  Backward(y, Tensor::Full(y.shape(), 1));
  EXPECT_NEAR(x.grad().ToVector<float>()[7], 2 * std::exp(1.0), 1e-5);
}

TEST(Autograd, UserDefinedFunctionMustReturnAllGradients) {
  Tensor x = Leaf({1});
  const Tensor y = Apply<TooFew>({x});
  EXPECT_TRUE(x.is_leaf());
  EXPECT_THROW(Backward(y), Error);
}

// Returns gradients of the shapes that it is made with.
struct WrongShapes : Function {
  explicit WrongShapes(std::vector<Shape> shapes) : shapes_(std::move(shapes)) {}
  const char* name() const override { return "wrong_shapes"; }
  Tensor Forward(const Tensors& x) override { return Mul(x[0], x[1]); }
  Tensors Backward(const Tensor&) override {
    return {Tensor::Full(shapes_[0], 1), Tensor::Full(shapes_[1], 1)};
  }
  std::vector<Shape> shapes_;
};

TEST(Autograd, GradientsOfWrongShapesAreNamed) {
  const auto message = [](Shape a, Shape b) -> std::string {
    Tensor x = Tensor::Full({2, 3}, 2).SetRequiresGrad(true);
    Tensor y = Tensor::Full({3}, 2).SetRequiresGrad(true);
    try {
      Backward(Sum(Apply<WrongShapes>({x, y}, std::vector<Shape>{a, b})));
    } catch (const Error& e) {
      return e.message();
    }
    return ToString(x.grad().shape()) + ToString(y.grad().shape());
  };
  EXPECT_EQ(message({7}, {3}),
            "[wrong_shapes] gradient of input 0 must have shape [2, 3] but has [7]");
  EXPECT_EQ(message({2, 3}, {4, 2}),
            "[wrong_shapes] gradient of input 1 must have shape [3] but has [4, 2]");
  EXPECT_EQ(message({3}, {3}),
            "[wrong_shapes] gradient of input 0 must have shape [2, 3] but has [3]");
  EXPECT_EQ(message({2, 3}, {2, 3}), "[2, 3][3]");     // what was broadcast is summed
  EXPECT_EQ(message({5, 2, 3}, {2, 3}), "[2, 3][3]");  // over any number of dimensions
}

TEST(Checkpoint, ComputesTheSameGradientsAgain) {
  const auto gradients = [](bool checkpoint) {
    Tensor x = Tensor::FromVector<float>({1, -2, 3}), w = Tensor::FromVector<float>({0.5f, 4, 2});
    x.SetRequiresGrad(true);
    w.SetRequiresGrad(true);
    int calls = 0;
    const auto layer = [w, &calls](const Tensor& a) {
      ++calls;
      return Mul(Mul(a, w), a);
    };
    Tensor y = Mul(x, x);
    for (int i = 0; i < 3; ++i) y = checkpoint ? Checkpoint(layer, y) : layer(y);
    Backward(Sum(y));
    EXPECT_EQ(calls, checkpoint ? 6 : 3);
    EXPECT_TRUE(GradEnabled());
    auto result = x.grad().ToVector<float>();
    for (const float g : w.grad().ToVector<float>()) result.push_back(g);
    return result;
  };
  EXPECT_EQ(gradients(true), gradients(false));
}

TEST(Checkpoint, MayNotUseWhatWasComputedOutside) {
  Tensor p = Tensor::FromVector<float>({2});
  p.SetRequiresGrad(true);
  const Tensor h = Mul(p, p);
  const Tensor y = Checkpoint([h](const Tensor& a) { return Mul(a, h); }, Mul(p, p));
  try {
    Backward(y);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(e.message().find(
                  "[checkpoint] the function uses a tensor that [mul] computed outside of it"),
              std::string::npos)
        << e.message();
  }
  p.SetGrad({});
  Backward(Checkpoint([d = h.Detach()](const Tensor& a) { return Mul(a, d); }, Mul(p, p)));
  EXPECT_EQ(p.grad().Item(), 16);
}

TEST(Checkpoint, WithoutGradientsItIsTheFunction) {
  const Tensor x = Tensor::FromVector<float>({3});
  Tensor w = Tensor::FromVector<float>({2});
  w.SetRequiresGrad(true);
  const auto layer = [w](const Tensor& a) { return Mul(a, w); };
  Backward(Checkpoint(layer, x));  // w still gets its gradient
  EXPECT_EQ(w.grad().Item(), 3);
  NoGradGuard no_grad;
  EXPECT_FALSE(Checkpoint(layer, w).requires_grad());
}

}  // namespace
}  // namespace lathe
