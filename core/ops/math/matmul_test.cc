#include "lathe/core/ops/math/matmul.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "lathe/core/ops/create/create.h"
#include "lathe/core/ops/linear.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

// Returns `shape` with its last two sizes swapped.
Shape Swapped(Shape shape) {
  std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  return shape;
}

// Leading dimensions of none, one and both operands, broadcast in either and in different
// dimensions; few and many matrices; sizes of 0 and 1.
TEST(Matmul, Op) {
  const std::vector<std::vector<Shape>> shapes = {{{2, 3}, {3, 4}},
                                                  {{2, 3, 4}, {2, 4, 5}},
                                                  {{2, 3, 4}, {4, 5}},
                                                  {{3, 4}, {2, 4, 5}},
                                                  {{2, 1, 3, 4}, {3, 4, 5}},
                                                  {{2, 1, 3, 4}, {1, 3, 4, 5}},
                                                  {{1, 1, 2}, {1, 2, 1}},
                                                  {{19, 3, 5}, {19, 5, 2}},
                                                  {{3, 17, 33}, {3, 33, 19}},
                                                  {{2, 3, 1, 7}, {2, 3, 7, 1}},
                                                  {{2, 1, 1, 2, 3}, {1, 2, 2, 3, 2}},
                                                  {{0, 2, 3}, {0, 3, 4}},
                                                  {{2, 3, 0}, {2, 0, 4}},
                                                  {{2, 0, 3}, {2, 3, 4}}};
  for (const Transposes options : {Transposes{}, Transposes{.a = true}, Transposes{.b = true},
                                   Transposes{.a = true, .b = true}}) {
    std::vector<std::vector<Shape>> stored;
    for (const std::vector<Shape>& pair : shapes) {
      stored.push_back(
          {options.a ? Swapped(pair[0]) : pair[0], options.b ? Swapped(pair[1]) : pair[1]});
    }
    CheckOp({.name = "matmul",
             .op = [=](const Tensors& x) { return Matmul(x[0], x[1], options); },
             .composed = [=](const Tensors& x) { return MatmulComposed(x[0], x[1], options); },
             .shapes = stored,
             .activations = {0, 1}});
  }
  CheckOp({.name = "matmul_vectors",
           .op = [](const Tensors& x) { return Matmul(x[0], x[1]); },
           .shapes = {{{4}, {4}}, {{3, 4}, {4}}, {{4}, {4, 5}}, {{4}, {2, 4, 5}}, {{2, 3, 4}, {4}}},
           .activations = {0, 1}});
}

// Large products, which use all threads one after the other, give the same as single products.
TEST(Matmul, LargeProducts) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  const Device device = CheckedDevice();
  for (const int64_t count : {1, 3, 4, 9}) {
    const Tensor a = Randn({count, 70, 150}, 1), b = Randn({count, 150, 90}, 2);
    const std::vector<float> c = Matmul(a.To(device), b.To(device)).ToVector<float>();
    for (int64_t i = 0; i < count; ++i) {
      const auto of = [&](const Tensor& x) { return x.Slice(i, i + 1).Reshape({x.dim(1), -1}); };
      const std::vector<float> expected = MatrixProduct(of(a), of(b)).ToVector<float>();
      for (size_t k = 0; k < expected.size(); ++k)
        ASSERT_NEAR(c[static_cast<size_t>(i) * expected.size() + k], expected[k], 1e-4);
    }
  }
}

TEST(Matmul, Errors) {
  const auto error = [](const Shape& a, const Shape& b, const Transposes& options = {}) {
    try {
      Matmul(Tensor::Zeros(a), Tensor::Zeros(b), options);
    } catch (const Error& e) {
      return std::string(e.message());
    }
    return std::string();
  };
  EXPECT_EQ(error({2, 3}, {4, 5}),
            "[matmul] the last dimension of a and the second-to-last of b must agree: [2, 3] and "
            "[4, 5]");
  EXPECT_EQ(error({2, 3}, {4, 5}, {.a = true, .b = true}),
            "[matmul] the second-to-last dimension of a and the last of b must agree: [2, 3] and "
            "[4, 5]");
  EXPECT_EQ(error({3}, {4}),
            "[matmul] the last dimension of a and the last dimension of b must agree: [3] and [4]");
  EXPECT_EQ(error({2, 2, 3}, {3, 3, 4}),
            "[matmul] the leading dimensions of a and b must broadcast: [2, 2, 3] and [3, 3, 4]");
  EXPECT_EQ(error({}, {3}), "[matmul] operands need at least one dimension: [] and [3]");
  EXPECT_EQ(error({3}, {3, 4}, {.a = true}),
            "[matmul] a vector can't be transposed: [3] and [3, 4]");
  EXPECT_THROW(Matmul(Tensor::Zeros({2, 2}), Tensor::Zeros({2, 2}, DType::kF64)), Error);
  EXPECT_THROW(Matmul(Tensor::Zeros({2, 2}, DType::kI64), Tensor::Zeros({2, 2}, DType::kI64)),
               Error);
}

}  // namespace
}  // namespace lathe
