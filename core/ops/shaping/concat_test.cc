#include "lathe/core/ops/shaping/concat.h"

#include <gtest/gtest.h>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/core/ops/shape.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

Device OpDevice() { return HasCheckedDevice() ? CheckedDevice() : Device{}; }

std::string MessageOf(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    return e.message();
  }
  return "no error";
}

TEST(Slice, Op) {
  CheckOp({.name = "slice_first_dim",
           .op = [](const Tensors& x) { return Slice(x[0], 0, 1, -1); },
           .composed = [](const Tensors& x) { return SliceRows(x[0], 1, x[0].dim(0) - 1); },
           .shapes = {{{5, 3}}, {{4}}, {{4, 2, 3}}, {{2, 3}}},
           .activations = {0}});
  CheckOp({.name = "slice_last_dim",
           .op = [](const Tensors& x) { return Slice(x[0], -1, 1, 3); },
           .composed = [](const Tensors& x) { return SliceColumns(x[0], 1, 3); },
           .shapes = {{{5, 4}}, {{1, 3}}, {{0, 3}}, {{300, 70}}},
           .activations = {0}});
  CheckOp({.name = "slice_middle",
           .op = [](const Tensors& x) { return Slice(x[0], 1, 1, kToEnd); },
           .shapes = {{{3, 4, 5}}, {{2, 1, 3}}, {{2, 5, 16}}, {{2, 3, 0}}},
           .activations = {0}});
  CheckOp({.name = "slice_steps",
           .op = [](const Tensors& x) { return Slice(x[0], 1, 1, kToEnd, 3); },
           .shapes = {{{3, 8, 5}}, {{2, 1, 3}}, {{2, 5}}, {{130, 150}}},
           .activations = {0}});
  CheckOp({.name = "slice_stepped_rows",
           .op = [](const Tensors& x) { return Slice(x[0], 0, 0, kToEnd, 2); },
           .shapes = {{{5, 3}}, {{1}}, {{6, 2, 8}}},
           .activations = {0}});
}

TEST(Slice, Values) {
  const Tensor x =
      Tensor::FromVector<int64_t>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {2, 5}).To(OpDevice());
  const auto values = [](const Tensor& y) { return y.ToVector<int64_t>(); };
  using V = std::vector<int64_t>;
  EXPECT_EQ(values(Slice(x, 1, 1, 4)), (V{1, 2, 3, 6, 7, 8}));
  EXPECT_EQ(values(Slice(x, 1, -2, kToEnd)), (V{3, 4, 8, 9}));
  EXPECT_EQ(values(Slice(x, 1, 0, -1, 2)), (V{0, 2, 5, 7}));
  EXPECT_EQ(values(Slice(x, 1, 1, 5, 3)), (V{1, 4, 6, 9}));
  EXPECT_EQ(values(Slice(x, 0, 1, 2)), (V{5, 6, 7, 8, 9}));
  EXPECT_EQ(Slice(x, 1, 2, 2).shape(), (Shape{2, 0}));
}

TEST(Slice, Errors) {
  const Tensor x = Tensor::Zeros({2, 3});
  EXPECT_EQ(MessageOf([&] { Slice(x, 2, 0, 1); }), "[slice] shape [2, 3] has no dimension 2");
  EXPECT_EQ(MessageOf([&] { Slice(x, 1, 1, 4); }),
            "[slice] elements 1 to 4 of dimension 1 don't exist in shape [2, 3]");
  EXPECT_EQ(MessageOf([&] { Slice(x, 1, 2, 1); }),
            "[slice] elements 2 to 1 of dimension 1 don't exist in shape [2, 3]");
  EXPECT_EQ(MessageOf([&] { Slice(x, 1, -4, 1); }),
            "[slice] elements -4 to 1 of dimension 1 don't exist in shape [2, 3]");
  EXPECT_EQ(MessageOf([&] { Slice(x, 1, 0, 3, 0); }),
            "[slice] expected a step of at least 1 but got 0");
}

TEST(Concat, Op) {
  CheckOp({.name = "concat_first_dim",
           .op = [](const Tensors& x) { return Concat(x, 0); },
           .composed = [](const Tensors& x) { return ConcatRows(x); },
           .shapes = {{{2, 3}, {1, 3}}, {{2}, {3}}, {{0, 3}, {2, 3}}, {{2, 2, 2}, {3, 2, 2}}},
           .activations = {0, 1}});
  CheckOp({.name = "concat_last_dim",
           .op = [](const Tensors& x) { return Concat(x, -1); },
           .composed = [](const Tensors& x) { return ConcatColumns(x); },
           .shapes = {{{2, 3}, {2, 1}}, {{0, 3}, {0, 2}}, {{2, 0}, {2, 3}}, {{90, 64}, {90, 200}}},
           .activations = {0, 1}});
  CheckOp({.name = "concat_middle",
           .op = [](const Tensors& x) { return Concat(x, 1); },
           .shapes = {{{2, 3, 4}, {2, 1, 4}, {2, 2, 4}}, {{2, 3, 8}, {2, 5, 8}, {2, 0, 8}}},
           .activations = {0, 1, 2}});
  CheckOp({.name = "concat_twice_the_same",
           .op =
               [](const Tensors& x) {
                 return Concat({x[0], x[0]}, 1);
               },
           .shapes = {{{2, 3}}},
           .activations = {0}});
}

TEST(Stack, Op) {
  CheckOp({.name = "stack",
           .op = [](const Tensors& x) { return Stack(x); },
           .shapes = {{{2, 3}, {2, 3}}, {{}, {}}, {{0, 2}, {0, 2}}},
           .activations = {0, 1}});
  CheckOp({.name = "stack_last",
           .op = [](const Tensors& x) { return Stack(x, -1); },
           .shapes = {{{2, 3}, {2, 3}, {2, 3}}},
           .activations = {0, 1, 2}});
  const Tensor a = Tensor::FromVector<int32_t>({1, 2}).To(OpDevice());
  const Tensor b = Tensor::FromVector<int32_t>({3, 4}).To(OpDevice());
  EXPECT_EQ(Stack({a, b}).ToVector<int32_t>(), (std::vector<int32_t>{1, 2, 3, 4}));
  const Tensor columns = Stack({a, b}, 1);
  EXPECT_EQ(columns.shape(), (Shape{2, 2}));
  EXPECT_EQ(columns.ToVector<int32_t>(), (std::vector<int32_t>{1, 3, 2, 4}));
}

TEST(Concat, Errors) {
  const Tensor x = Tensor::Zeros({2, 3});
  EXPECT_EQ(MessageOf([&] {
              Concat({x, Tensor::Zeros({4, 5})}, 1);
            }),
            "[concat] tensors must agree in all dimensions but 1: [2, 3] and [4, 5]");
  EXPECT_EQ(MessageOf([&] {
              Concat({x, Tensor::Zeros({2})}, 0);
            }),
            "[concat] tensors must agree in all dimensions but 0: [2, 3] and [2]");
  EXPECT_EQ(MessageOf([&] {
              Concat({x, Tensor::Zeros({2, 3}, DType::kF64)}, 0);
            }),
            "[concat] expected tensors of one dtype but got float32 and float64");
  EXPECT_EQ(MessageOf([&] { Concat({}, 0); }),
            "[concat] expected at least one tensor but got none");
  EXPECT_EQ(MessageOf([&] {
              Stack({x, Tensor::Zeros({2, 4})});
            }),
            "[stack] tensors must have one shape and dtype: [2, 3] float32 and [2, 4] float32");
  EXPECT_EQ(MessageOf([&] { Stack({}); }), "[stack] expected at least one tensor but got none");
}

// Reads the parts in another order and one of them twice; another one stays unused.
Tensor SumOfSomeParts(const std::vector<Tensor>& parts) {
  return Add(Mul(parts[2], parts[0]), Scale(parts[2], 3));
}

TEST(Split, Op) {
  CheckOp({.name = "split",
           .op =
               [](const Tensors& x) {
                 return SumOfSomeParts(Split(x[0], {2, 1, 2, 3}, 1));
               },
           .composed =
               [](const Tensors& x) {
                 return SumOfSomeParts({Slice(x[0], 1, 0, 2), {}, Slice(x[0], 1, 3, 5)});
               },
           .shapes = {{{3, 8}}, {{2, 8, 3}}, {{0, 8}}}});
  CheckOp({.name = "split_rows",
           .op = [](const Tensors& x) { return SumOfSomeParts(Split(x[0], 2)); },
           .composed =
               [](const Tensors& x) {
                 return SumOfSomeParts({Slice(x[0], 0, 0, 2), {}, Slice(x[0], 0, 4, 6)});
               },
           .shapes = {{{7, 3}}, {{6}}}});
  CheckOp({.name = "split_and_concat",
           .op = [](const Tensors& x) { return Concat(Split(x[0], 3, -1), -1); },
           .composed = [](const Tensors& x) { return Reshape(x[0], x[0].shape()); },
           .shapes = {{{2, 7}}, {{2, 3, 9}}, {{4, 0}}},
           .activations = {0}});
}

// A backward pass from one part must not leave its gradient to the next graph.
TEST(Split, PartsOneAfterTheOther) {
  Tensor leaf =
      Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2}).To(OpDevice()).SetRequiresGrad(true);
  std::vector<Tensor> parts = Split(leaf, 1, 1);
  Backward(Sum(parts[1]));
  Backward(Sum(Scale(parts[0], 2)));
  EXPECT_EQ(leaf.grad().ToVector<float>(), (std::vector<float>{2, 1, 2, 1}));
  parts = Split(Scale(leaf, 1), 1, 1);
  Backward(Sum(parts[1]));
  EXPECT_EQ(leaf.grad().ToVector<float>(), (std::vector<float>{2, 2, 2, 2}));
  EXPECT_THROW(Backward(Sum(parts[0])), Error);
}

TEST(Split, ShapesAndErrors) {
  const Tensor x = Tensor::Zeros({2, 7}, DType::kU8);
  const std::vector<Tensor> parts = Split(x, 3, 1);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].shape(), (Shape{2, 3}));
  EXPECT_EQ(parts[2].shape(), (Shape{2, 1}));
  EXPECT_EQ(Split(Tensor::Zeros({0, 2}), 3).size(), 1u);
  EXPECT_EQ(MessageOf([&] {
              Split(x, {3, 3}, 1);
            }),
            "[split] sizes [3, 3] don't add up to dimension 1 of shape [2, 7]");
  EXPECT_EQ(MessageOf([&] {
              Split(x, {3, -1, 5}, 1);
            }),
            "[split] sizes [3, -1, 5] don't add up to dimension 1 of shape [2, 7]");
  EXPECT_EQ(MessageOf([&] { Split(x, 0, 1); }),
            "[split] expected parts of at least one element but got 0");
}

}  // namespace
}  // namespace lathe
