#include "lathe/core/ops/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/shape.h"
#include "lathe/core/ops/shaping/permute.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

TEST(Linear, MatrixProduct) {
  CheckOp({.name = "matmul",
           .op = [](const Tensors& x) { return MatrixProduct(x[0], x[1]); },
           .shapes = {{{2, 3}, {3, 4}}, {{1, 1}, {1, 1}}, {{0, 3}, {3, 2}}, {{33, 40}, {40, 17}}},
           .nan_check = false,
           .activations = {0, 1}});
  CheckOp(
      {.name = "matmul_transposed",
       .op = [](const Tensors& x) { return MatrixProduct(x[0], x[1], {.a = true, .b = true}); },
       .composed = [](const Tensors& x) { return MatrixProduct(Transpose(x[0]), Transpose(x[1])); },
       .shapes = {{{3, 2}, {4, 3}}, {{3, 0}, {2, 3}}},
       .activations = {0, 1}});
}

TEST(Linear, Layer) {
  for (ActivationKind activation :
       {ActivationKind::kNone, ParseActivation("gelu"), ParseActivation("gelu_new"),
        ParseActivation("relu"), ParseActivation("tanh"), ParseActivation("silu")}) {
    CheckOp({.name = "linear",
             .op = [=](const Tensors& x) { return Linear(x[0], x[1], x[2], activation); },
             .composed =
                 [=](const Tensors& x) {
                   const Tensor y = Add(MatrixProduct(x[0], x[1], {.b = true}), x[2]);
                   return Activation(y, activation);
                 },
             .shapes = {{{2, 3}, {4, 3}, {4}}, {{0, 3}, {2, 3}, {2}}, {{9, 33}, {17, 33}, {17}}},
             .tolerance = 5e-5,
             .grad_tolerance = 5e-4,
             .activations = {0}});
  }
  CheckOp({.name = "linear_many_rows",
           .op = [](const Tensors& x) { return Linear(x[0], x[1], x[2]); },
           .composed =
               [](const Tensors& x) { return Add(MatrixProduct(x[0], x[1], {.b = true}), x[2]); },
           .shapes = {{{300, 5}, {24, 5}, {24}}, {{131, 3}, {270, 3}, {270}}},
           .tolerance = 5e-5,
           .grad_tolerance = 5e-4,
           .activations = {0}});
  for (ActivationKind activation : {ParseActivation("gelu"), ParseActivation("gelu_new")}) {
    CheckOp({.name = "linear_activation_many_rows",
             .op = [=](const Tensors& x) { return Linear(x[0], x[1], x[2], activation); },
             .composed =
                 [=](const Tensors& x) {
                   return Activation(Add(MatrixProduct(x[0], x[1], {.b = true}), x[2]), activation);
                 },
             .shapes = {{{300, 5}, {24, 5}, {24}}, {{131, 3}, {270, 3}, {270}}},
             .tolerance = 5e-5,
             .grad_tolerance = 5e-4,
             .activations = {0}});
  }
  CheckOp({.name = "linear_stack",
           .op =
               [](const Tensors& x) {
                 return LinearStack(x[0], {x[1], x[2]}, {x[3], x[4]});
               },
           .composed =
               [](const Tensors& x) {
                 return ConcatRows({Linear(x[0], x[1], x[3]), Linear(x[0], x[2], x[4])});
               },
           .shapes = {{{2, 3}, {4, 3}, {4, 3}, {4}, {4}}, {{0, 3}, {4, 3}, {4, 3}, {4}, {4}}},
           .activations = {0}});
}

TEST(Linear, FeedForward) {
  for (ActivationKind activation :
       {ActivationKind::kNone, ParseActivation("gelu"), ParseActivation("gelu_new"),
        ParseActivation("relu"), ParseActivation("tanh"), ParseActivation("silu")}) {
    CheckOp({.name = "feed_forward",
             .op =
                 [=](const Tensors& x) {
                   return FeedForward(x[0], x[1], x[2], activation, x[3], x[4]);
                 },
             .composed =
                 [=](const Tensors& x) {
                   const Tensor y = Add(MatrixProduct(x[0], x[1], {.b = true}), x[2]);
                   return Add(MatrixProduct(Activation(y, activation), x[3], {.b = true}), x[4]);
                 },
             .shapes = {{{2, 3}, {4, 3}, {4}, {2, 4}, {2}},
                        {{0, 3}, {2, 3}, {2}, {3, 2}, {3}},
                        {{9, 20}, {33, 20}, {33}, {17, 33}, {17}}},
             .tolerance = 5e-5,
             .grad_tolerance = 5e-4,
             .activations = {0}});
  }
}

// Whatever is frozen, the other inputs get the gradients of two Linear layers. A layer may lack its
// bias.
TEST(Linear, FeedForwardWithFrozenParts) {
  const auto numbers = [](const Shape& shape, float phase) {
    std::vector<float> values(static_cast<size_t>(NumElements(shape)));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = std::sin(static_cast<float>(i) * 1.7f + phase);
    return Tensor::FromVector(values, shape);
  };
  const std::vector<Shape> shapes = {{6, 5}, {7, 5}, {7}, {3, 7}, {3}};
  for (const bool biases : {true, false}) {
    for (unsigned needed = 1; needed < 32; ++needed) {
      const auto gradients = [&](bool fused) {
        std::vector<Tensor> x;
        for (size_t i = 0; i < shapes.size(); ++i) {
          const bool lacks = !biases && shapes[i].size() == 1;
          x.push_back(lacks ? Tensor() : numbers(shapes[i], static_cast<float>(i)));
          if (!lacks) x.back().SetRequiresGrad((needed >> i & 1) != 0);
        }
        const ActivationKind gelu = ActivationKind::kGelu;
        const Tensor y = fused ? FeedForward(x[0], x[1], x[2], gelu, x[3], x[4])
                               : Linear(Linear(x[0], x[1], x[2], gelu), x[3], x[4]);
        std::vector<std::vector<float>> all = {y.ToVector<float>()};
        if (!y.requires_grad()) return all;
        Backward(y, numbers(y.shape(), 9));
        for (const Tensor& leaf : x)
          if (leaf.defined() && leaf.grad().defined()) all.push_back(leaf.grad().ToVector<float>());
        return all;
      };
      const auto fused = gradients(true), alone = gradients(false);
      ASSERT_EQ(fused.size(), alone.size()) << needed;
      for (size_t i = 0; i < fused.size(); ++i)
        for (size_t j = 0; j < fused[i].size(); ++j)
          ASSERT_NEAR(fused[i][j], alone[i][j], 1e-5) << needed << " " << i << " " << j;
    }
  }
}

TEST(Linear, FeedForwardKeepsWhatEntersItsActivationAlone) {
  constexpr int64_t kRows = 64, kWidth = 1024;
  const Tensor x = Tensor::Full({kRows, 8}, 0.5), w1 = Tensor::Full({kWidth, 8}, 0.1),
               w2 = Tensor::Full({8, kWidth}, 0.1);
  Tensor(w1).SetRequiresGrad(true);
  const int64_t before = TensorMemory().now;
  const Tensor y = FeedForward(x, w1, {}, ActivationKind::kGelu, w2, {});
  EXPECT_NEAR(static_cast<double>(TensorMemory().now - before), kRows * kWidth * 4, 8192);
  EXPECT_THROW(FeedForward(x, w1, {}, ActivationKind::kGelu, w1, {}), Error);
  EXPECT_THROW(FeedForward(x, w1, Tensor::Zeros({3}), ActivationKind::kGelu, w2, {}), Error);
}

// Checks a stack whose parameters and gradients lie one behind the other, as in an arena, in either
// order. A device may compute it in one product. Gradients must be those of each layer alone, and
// overwrite stale ones.
void CheckStackOfNeighbours(DType dtype, bool ascending, bool stale) {
  SCOPED_TRACE(testing::Message() << ToString(dtype) << " ascending " << ascending << " stale "
                                  << stale);
  constexpr int64_t kRows = 6, kIn = 16, kOut = 8, kStep = kIn * kOut + 16;
  std::vector<float> numbers(2 * kStep);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<float>(i));
  const auto leaves = [&](bool together) {
    const Tensor values = Tensor::FromVector(numbers).To(CheckedDevice());
    const Tensor grads =
        Tensor::Full({2 * kStep}, stale ? std::nan("") : 0.25, DType::kF32, CheckedDevice());
    std::vector<Tensor> all;  // weights, then biases
    for (const bool bias : {false, true}) {
      for (const int64_t i : {0, 1}) {
        const int64_t begin = (ascending ? i : 1 - i) * kStep + (bias ? kIn * kOut : 0);
        const auto part = [&](const Tensor& buffer) {
          const Tensor view = buffer.Slice(begin, begin + (bias ? kOut : kIn * kOut));
          const Tensor own = together ? view : view.Clone();
          return bias ? own : own.Reshape({kOut, kIn});
        };
        Tensor leaf = part(values).Detach();
        leaf.SetRequiresGrad(true);
        leaf.SetGrad(part(grads));
        leaf.impl()->mutable_gradient().is_stale = stale;
        all.push_back(leaf);
      }
    }
    return all;
  };
  const Tensor x =
      Tensor::FromVector(std::vector<float>(numbers.begin(), numbers.begin() + kRows * kIn),
                         {kRows, kIn})
          .To(dtype)
          .To(CheckedDevice());
  const std::vector<Tensor> a = leaves(true), b = leaves(false);
  const Tensor is = LinearStack(x, {a[0], a[1]}, {a[2], a[3]});
  const Tensor expected = ConcatRows({Linear(x, b[0], b[2]), Linear(x, b[1], b[3])});
  const auto host = [](const Tensor& t) {
    return t.Detach().To(Device{}).To(DType::kF32).ToVector<float>();
  };
  const auto expect_near = [](const std::vector<float>& of, const std::vector<float>& to) {
    ASSERT_EQ(of.size(), to.size());
    for (size_t i = 0; i < of.size(); ++i) EXPECT_NEAR(of[i], to[i], 1e-5) << i;
  };
  expect_near(host(is), host(expected));
  const Tensor dy = Tensor::FromVector(std::vector<float>(numbers.begin() + 7,
                                                          numbers.begin() + 7 + 2 * kRows * kOut),
                                       {2 * kRows, kOut})
                        .To(dtype)
                        .To(CheckedDevice());
  Backward(is, dy);
  Backward(expected, dy);
  for (size_t i = 0; i < a.size(); ++i) {
    SCOPED_TRACE(i);
    expect_near(host(a[i].grad()), host(b[i].grad()));
  }
}

TEST(Linear, StacksOfNeighboursAreAsEachAlone) {
  if (!WhyNoCheckedDevice().empty()) GTEST_SKIP() << WhyNoCheckedDevice();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool ascending : {true, false}) {
      for (const bool stale : {true, false}) CheckStackOfNeighbours(dtype, ascending, stale);
    }
  }
}

// Layers that share their parameters get the right gradients. First there are no gradients yet,
// then stale ones, then present ones.
TEST(Linear, StackOfOneLayerTwice) {
  const auto leaf = [](std::vector<float> values, const Shape& shape) {
    return Tensor::FromVector(std::move(values), shape).SetRequiresGrad(true);
  };
  const Tensor x = Tensor::FromVector(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor w = leaf({1, -1, 2, 0, 3, 1}, {2, 3}), b = leaf({5, 6}, {2});
  const Tensor dy = Tensor::FromVector(std::vector<float>{1, 2, 3, 4, 10, 20, 30, 40}, {4, 2});
  const auto pass = [&] { Backward(LinearStack(x, {w, w}, {b, b}), dy); };
  // Both layers' columns of dy times x, added up.
  const std::vector<float> dw = {143, 187, 231, 198, 264, 330}, db = {44, 66};
  pass();
  EXPECT_EQ(w.grad().ToVector<float>(), dw);
  EXPECT_EQ(b.grad().ToVector<float>(), db);
  w.impl()->mutable_gradient().is_stale = b.impl()->mutable_gradient().is_stale = true;
  pass();
  EXPECT_EQ(w.grad().ToVector<float>(), dw);
  EXPECT_EQ(b.grad().ToVector<float>(), db);
  pass();
  EXPECT_EQ(w.grad().ToVector<float>()[5], 660);
  EXPECT_EQ(b.grad().ToVector<float>()[1], 132);
}

// Checks that one pass does the work of two: it stores the gradient and sums what it stores.
template <typename T>
void CheckBackwardAndSums(int64_t rows, int64_t n, bool overwrite,
                          ActivationKind kind = ActivationKind::kGelu) {
  SCOPED_TRACE(testing::Message() << rows << " rows of " << n << ", overwrite " << overwrite);
  const Device device = CheckedDevice();
  const auto& kernels = KernelsOf<T, cpu::ActivationKernels>(device);
  ASSERT_NE(kernels.backward_and_sums, nullptr);
  std::vector<float> values(static_cast<size_t>(rows * n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  const auto there = [&](const std::vector<float>& v) {
    return Tensor::FromVector(v).To(DTypeOf<T>::value).To(device);
  };
  const Tensor dy = there(values);
  for (float& v : values) v = 3 * std::cos(7 * v);
  const Tensor x = there(values);
  const std::vector<float> before(static_cast<size_t>(n), overwrite ? std::nanf("") : 0.5f);
  const Tensor sums = Tensor::FromVector(before).To(device);
  const Tensor dx = Tensor::Empty({rows * n}, DTypeOf<T>::value, device);
  kernels.backward_and_sums(dx.data<T>(), sums.data<float>(), dy.data<T>(), x.data<T>(), rows, n,
                            kind, overwrite);
  const Tensor expected = Tensor::Empty({rows * n}, DTypeOf<T>::value, device);
  kernels.backward(expected.data<T>(), dy.data<T>(), x.data<T>(), rows * n, kind);
  const std::vector<float> stored = dx.To(Device{}).To(DType::kF32).template ToVector<float>();
  ExpectSameButForRounding(stored, expected.To(Device{}).To(DType::kF32).template ToVector<float>(),
                           DTypeOf<T>::value);
  const std::vector<float> is = sums.To(Device{}).ToVector<float>();
  for (int64_t c = 0; c < n; ++c) {
    double sum = overwrite ? 0 : 0.5;
    for (int64_t r = 0; r < rows; ++r) sum += stored[static_cast<size_t>(r * n + c)];
    ASSERT_NEAR(is[static_cast<size_t>(c)], sum, 1e-4) << "column " << c;
  }
}

TEST(Linear, BackwardAndSumsInOnePassOnDevices) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "two passes on the host";
  for (const bool overwrite : {true, false}) {
    for (const auto& [rows, n] :
         {std::pair{0, 5}, {1, 1}, {5, 3}, {16, 8}, {33, 24}, {700, 264}, {257, 130}}) {
      CheckBackwardAndSums<float>(rows, n, overwrite);
      CheckBackwardAndSums<BFloat16>(rows, n, overwrite);
      CheckBackwardAndSums<Float16>(rows, n, overwrite);
    }
  }
  for (const ActivationKind kind :
       {ActivationKind::kGeluNew, ActivationKind::kRelu, ActivationKind::kTanh,
        ActivationKind::kSilu, ActivationKind::kGelu10, ActivationKind::kQuickGelu,
        ActivationKind::kMish, ActivationKind::kRelu2, ActivationKind::kRelu6,
        ActivationKind::kLeakyRelu, ActivationKind::kSigmoid}) {
    for (const int64_t n : {3, 16}) {
      CheckBackwardAndSums<float>(33, n, true, kind);
      CheckBackwardAndSums<BFloat16>(33, n, true, kind);
      CheckBackwardAndSums<Float16>(33, n, true, kind);
    }
  }
}

TEST(Linear, WeightsOfAnotherTypeAreAnError) {
  const auto message = [](DType x, DType weight) -> std::string {
    try {
      Linear(Tensor::Zeros({2, 3}, x), Tensor::Zeros({4, 3}, weight), {});
    } catch (const Error& e) {
      return e.message();
    }
    return "no error";
  };
  EXPECT_EQ(message(DType::kBF16, DType::kBF16),
            "[linear] weight must be float32 for bfloat16 x but is bfloat16");
  EXPECT_EQ(message(DType::kF32, DType::kF64),
            "[linear] weight must be float32 for float32 x but is float64");
  EXPECT_EQ(message(DType::kBF16, DType::kF32), "no error");
}

// Checks that the sums of the first n of ld columns are added to the old values.
template <typename T>
void CheckColumnSums(int64_t rows, int64_t n, int64_t ld) {
  SCOPED_TRACE(testing::Message() << rows << " rows of " << n << " in " << ld);
  const Device device = CheckedDevice();
  std::vector<float> values(static_cast<size_t>(rows * ld));  // exact in every dtype
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 7 % 33) / 4 - 4;
  std::vector<float> expected(static_cast<size_t>(n), 0.5f);
  const Tensor sums = Tensor::FromVector(expected).To(device);
  for (int64_t i = 0; i < rows * ld; ++i) {
    if (i % ld < n) expected[static_cast<size_t>(i % ld)] += values[static_cast<size_t>(i)];
  }
  const Tensor x = Tensor::FromVector(values).To(DTypeOf<T>::value).To(device);
  const auto& kernels = KernelsOf<T, cpu::ActivationKernels>(device);
  kernels.column_sums(sums.data<float>(), x.data<T>(), rows, n, ld);
  EXPECT_EQ(sums.ToVector<float>(), expected);
}

TEST(Linear, ColumnSumsOnDevices) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device";
  for (const auto& [rows, n, ld] :
       {std::tuple{1, 1, 1}, {5, 3, 7}, {33, 24, 24}, {65, 16, 32}, {700, 264, 264}}) {
    CheckColumnSums<float>(rows, n, ld);
    CheckColumnSums<BFloat16>(rows, n, ld);
    CheckColumnSums<Float16>(rows, n, ld);
  }
}

}  // namespace
}  // namespace lathe
