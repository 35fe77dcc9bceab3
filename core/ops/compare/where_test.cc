#include "lathe/core/ops/compare/where.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

Device OpDevice() { return HasCheckedDevice() ? CheckedDevice() : Device{}; }

// Returns a mask with an irregular pattern.
Tensor Mask(const Shape& shape) {
  std::vector<uint8_t> flags(static_cast<size_t>(NumElements(shape)));
  for (size_t i = 0; i < flags.size(); ++i) flags[i] = i * i % 7 < 3 ? 1 : 0;
  return Tensor::FromVector(flags, shape);
}

// m a + (1 - m) b, which loses NaN's place and is only for finite numbers
Tensor WhereComposed(const Tensor& mask, const Tensor& a, const Tensor& b) {
  const Tensor m = mask.To(a.dtype());
  return Add(Mul(m, a), Mul(AddScalar(Scale(m, -1), 1), b));
}

TEST(Where, Op) {
  const auto check = [](const char* name, const Tensor& mask,
                        const std::vector<std::vector<Shape>>& shapes) {
    CheckOp({.name = name,
             .op = [&](const Tensors& x) { return Where(mask.To(x[0].device()), x[0], x[1]); },
             .composed = [&](const Tensors& x) { return WhereComposed(mask, x[0], x[1]); },
             .shapes = shapes,
             .nan_check = false,
             .activations = {0, 1}});
  };
  check("where", Mask({3, 4}), {{{3, 4}, {3, 4}}, {{4}, {3, 1}}, {{}, {2, 3, 4}}, {{1, 4}, {}}});
  check("where_mask_of_rows", Mask({5, 1}), {{{5, 6}, {5, 6}}, {{5, 1}, {5, 9}}, {{6}, {1}}});
  check("where_mask_of_columns", Mask({6}), {{{5, 6}, {5, 6}}, {{5, 1}, {6}}, {{0, 6}, {1}}});
  check("where_large", Mask({90, 1, 20}), {{{90, 30, 20}, {30, 1}}});
  check("where_scalar_mask", Mask({}), {{{3}, {3}}});
}

TEST(Where, MaskedFill) {
  const auto check = [](const char* name, const Tensor& mask, const std::vector<Shape>& shapes) {
    std::vector<std::vector<Shape>> lists;
    for (const Shape& shape : shapes) lists.push_back({shape});
    CheckOp({.name = name,
             .op = [&](const Tensors& x) { return MaskedFill(x[0], mask.To(x[0].device()), -3); },
             .composed =
                 [&](const Tensors& x) {
                   return WhereComposed(mask, Tensor::Full({}, -3, x[0].dtype()), x[0]);
                 },
             .shapes = lists,
             .nan_check = false,
             .activations = {0}});
  };
  check("masked_fill", Mask({4, 5}), {{4, 5}, {2, 4, 5}});
  check("masked_fill_keys", Mask({2, 1, 1, 5}), {{2, 3, 4, 5}, {2, 0, 4, 5}});
  check("masked_fill_rows", Mask({4, 1}), {{4, 5}, {4, 1}});
}

// What was not chosen has no effect, whatever it is.
TEST(Where, NotChosenNaN) {
  const float nan = std::nanf("");
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Tensor a = Tensor::FromVector<float>({1, nan}).To(dtype).To(OpDevice()).SetRequiresGrad(true);
    Tensor b = Tensor::FromVector<float>({nan, 2}).To(dtype).To(OpDevice()).SetRequiresGrad(true);
    const Tensor y = Where(Tensor::FromVector<uint8_t>({1, 0}).To(OpDevice()), a, b);
    const auto numbers = [](const Tensor& t) { return t.To(DType::kF32).ToVector<float>(); };
    EXPECT_EQ(numbers(y), (std::vector<float>{1, 2}));
    Backward(y, Tensor::FromVector<float>({3, INFINITY}).To(dtype).To(OpDevice()));
    EXPECT_EQ(numbers(a.grad()), (std::vector<float>{3, 0}));
    EXPECT_EQ(numbers(b.grad()), (std::vector<float>{0, INFINITY}));
  }
}

TEST(Where, EveryDType) {
  const Tensor mask = Tensor::FromVector<uint8_t>({0, 5, 1}).To(OpDevice());
  for (const DType dtype : {DType::kF64, DType::kF16, DType::kI64, DType::kI32, DType::kU8}) {
    const Tensor a = Tensor::FromVector<float>({1, 2, 3}).To(dtype).To(OpDevice());
    const Tensor b = Tensor::FromVector<float>({4}).To(dtype).To(OpDevice());
    const auto numbers = [](const Tensor& t) {
      return t.To(Device{}).To(DType::kF32).ToVector<float>();
    };
    EXPECT_EQ(numbers(Where(mask, a, b)), (std::vector<float>{4, 2, 3}));
    EXPECT_EQ(numbers(Where(mask.To(Device{}).To(DType::kBool).To(OpDevice()), b, a)),
              (std::vector<float>{1, 4, 4}));
    EXPECT_EQ(MaskedFill(a, mask, 9).dtype(), dtype);
    EXPECT_EQ(numbers(MaskedFill(a, mask, 9)), (std::vector<float>{1, 9, 9}));
  }
}

TEST(Where, Errors) {
  const Tensor x = Tensor::Zeros({2, 3}), mask = Tensor::Zeros({2, 3}, DType::kBool);
  const auto message = [](const auto& run) {
    try {
      run();
    } catch (const Error& e) {
      return e.message();
    }
    return std::string("no error");
  };
  EXPECT_EQ(message([&] { Where(mask, x, Tensor::Zeros({2})); }),
            "[where] shapes [2, 3] and [2] don't broadcast");
  EXPECT_EQ(message([&] { Where(x, x, x); }),
            "[where] the condition must be bool or uint8 but is float32");
  EXPECT_EQ(message([&] { Where(mask, x, Tensor::Zeros({3}, DType::kF64)); }),
            "[where] expected operands of one dtype but got float32 and float64");
  EXPECT_EQ(message([&] { MaskedFill(Tensor::Zeros({3}), mask, 1); }),
            "[masked_fill] a mask of shape [2, 3] can't be broadcast to [3]");
  EXPECT_EQ(message([&] { MaskedFill(x, Tensor::Zeros({4}, DType::kBool), 1); }),
            "[masked_fill] shapes [4] and [2, 3] don't broadcast");
  const auto fill = [&](DType dtype, double value) {
    return message([&] { MaskedFill(Tensor::Zeros({2, 3}, dtype), mask, value); });
  };
  EXPECT_EQ(fill(DType::kI64, NAN), "[masked_fill] int64 can't hold nan");
  EXPECT_EQ(fill(DType::kBool, NAN), "no error");
  EXPECT_EQ(fill(DType::kBool, 0.5), "no error");
  EXPECT_EQ(fill(DType::kI32, -INFINITY), "[masked_fill] int32 can't hold -inf");
  EXPECT_EQ(fill(DType::kI64, 1.5), "[masked_fill] int64 can't hold 1.5");
  EXPECT_EQ(fill(DType::kU8, 256), "[masked_fill] uint8 can't hold 256");
  EXPECT_EQ(fill(DType::kF16, -1e9), "[masked_fill] float16 can't hold -1e+09");
  EXPECT_EQ(fill(DType::kF32, -INFINITY), "no error");
  EXPECT_EQ(fill(DType::kU8, 255), "no error");
}

// Every number but 0 is true, NaN and fractions included, as in Tensor::Full.
TEST(Where, MasksAreFilledAsTensorFullFillsThem) {
  const Tensor mask = Tensor::Full({2}, 1, DType::kBool);
  for (const double value : {double{NAN}, 0.5, -3.0, 1.0, 0.0}) {
    const Tensor filled = MaskedFill(Tensor::Zeros({2}, DType::kBool), mask, value);
    EXPECT_EQ(filled.To(DType::kI64).ToVector<int64_t>(),
              Tensor::Full({2}, value, DType::kBool).To(DType::kI64).ToVector<int64_t>());
    EXPECT_EQ(filled.To(DType::kI64).ToVector<int64_t>()[0], value == 0 ? 0 : 1) << value;
  }
}

}  // namespace
}  // namespace lathe
