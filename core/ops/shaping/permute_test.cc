#include "lathe/core/ops/shaping/permute.h"

#include <gtest/gtest.h>

#include "lathe/core/autograd.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

// Returns 0, 1, 2, ... in a tensor of this shape and dtype.
Tensor Numbered(const Shape& shape, DType dtype = DType::kF32) {
  std::vector<float> values(static_cast<size_t>(NumElements(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  return Tensor::FromVector(values, shape).To(dtype);
}

TEST(Permute, Op) {
  CheckOp({.name = "transpose",
           .op = [](const Tensors& x) { return Transpose(x[0]); },
           .shapes = {{{2, 3}}, {{1, 4}}, {{0, 3}}, {{33, 70}}, {{150, 130}}},
           .activations = {0}});
  CheckOp({.name = "transpose_heads",
           .op = [](const Tensors& x) { return Transpose(x[0], 1, -2); },
           .shapes = {{{2, 3, 4, 5}}, {{2, 3, 5, 16}}, {{1, 2, 3, 1}}, {{2, 0, 3, 4}}},
           .activations = {0}});
  CheckOp({.name = "transpose_ends",
           .op = [](const Tensors& x) { return Transpose(x[0], 0, -1); },
           .shapes = {{{2, 3, 4}}, {{40, 3, 35}}, {{7}}},
           .activations = {0}});
  CheckOp({.name = "permute",
           .op =
               [](const Tensors& x) {
                 return Permute(x[0], {2, -4, 3, 1});
               },
           .shapes = {{{2, 3, 4, 5}}, {{3, 1, 2, 1}}, {{5, 33, 2, 34}}},
           .activations = {0}});
}

TEST(Permute, Matrix) {
  const Tensor x = Numbered({2, 3}).To(HasCheckedDevice() ? CheckedDevice() : Device{});
  EXPECT_EQ(Transpose(x).ToVector<float>(), (std::vector<float>{0, 3, 1, 4, 2, 5}));
}

// Compares with the definition, element by element.
TEST(Permute, Values) {
  const Shape shape = {3, 4, 2, 5};
  const std::vector<std::vector<int64_t>> orders = {{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 0, 2, 3},
                                                    {0, 2, 1, 3}, {0, 1, 3, 2}, {2, 3, 0, 1},
                                                    {3, 0, 1, 2}, {1, 3, 0, 2}};
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI64,
                            DType::kI32, DType::kU8}) {
    const Tensor x = Numbered(shape, dtype).To(HasCheckedDevice() ? CheckedDevice() : Device{});
    for (const std::vector<int64_t>& order : orders) {
      const Tensor y = Permute(x, order);
      EXPECT_EQ(y.dtype(), dtype);
      Shape expected_shape;
      for (const int64_t d : order) expected_shape.push_back(shape[d]);
      ASSERT_EQ(y.shape(), expected_shape);
      const std::vector<float> values = y.To(Device{}).To(DType::kF32).ToVector<float>();
      size_t at = 0;
      int64_t place[4];
      for (place[0] = 0; place[0] < y.dim(0); ++place[0]) {
        for (place[1] = 0; place[1] < y.dim(1); ++place[1]) {
          for (place[2] = 0; place[2] < y.dim(2); ++place[2]) {
            for (place[3] = 0; place[3] < y.dim(3); ++place[3]) {
              int64_t from[4];
              for (int k = 0; k < 4; ++k) from[order[k]] = place[k];
              const int64_t number = ((from[0] * 4 + from[1]) * 2 + from[2]) * 5 + from[3];
              ASSERT_EQ(values[at++], static_cast<float>(number));
            }
          }
        }
      }
    }
  }
}

TEST(Permute, Large) {
  const Tensor x = Numbered({64, 70, 80});
  const Tensor twice = Transpose(Transpose(x, 0, 2), 0, 2);
  EXPECT_EQ(twice.ToVector<float>(), x.ToVector<float>());
  const Tensor y = Permute(x, {1, 0, 2});
  for (const int64_t i : {0, 33, 69}) {
    EXPECT_EQ(y.Slice(i, i + 1).ToVector<float>()[63 * 80 + 7],
              x.values<float>()[(63 * 70 + i) * 80 + 7]);
  }
}

TEST(Permute, Errors) {
  const Tensor x = Tensor::Zeros({2, 3});
  const auto message = [](const auto& run) {
    try {
      run();
    } catch (const Error& e) {
      return e.message();
    }
    return std::string("no error");
  };
  EXPECT_EQ(message([&] { Transpose(x, 0, 2); }), "[transpose] shape [2, 3] has no dimension 2");
  EXPECT_EQ(message([&] { Transpose(Tensor::Zeros({3})); }),
            "[transpose] expected shape [R, C] but got [3]");
  EXPECT_EQ(message([&] { Transpose(x, -3, 1); }), "[transpose] shape [2, 3] has no dimension -3");
  EXPECT_EQ(message([&] {
              Permute(x, {0, -2});
            }),
            "[permute] expected each dimension of shape [2, 3] once but got [0, -2]");
  EXPECT_EQ(message([&] { Permute(x, {0}); }),
            "[permute] expected each dimension of shape [2, 3] once but got [0]");
}

}  // namespace
}  // namespace lathe
