#include "lathe/core/ops/compare/compare.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

Device OpDevice() { return HasCheckedDevice() ? CheckedDevice() : Device{}; }

using Flags = std::vector<uint8_t>;
Flags FlagsOf(const Tensor& x) {
  EXPECT_EQ(x.dtype(), DType::kBool);
  EXPECT_FALSE(x.requires_grad());
  return x.To(Device{}).To(DType::kU8).ToVector<uint8_t>();
}

std::vector<DType> DTypes() {
  std::vector<DType> dtypes = {DType::kF32, DType::kBF16, DType::kF16, DType::kI64, DType::kI32};
  if (!HasCheckedDevice()) dtypes.push_back(DType::kF64);
  return dtypes;
}

TEST(Compare, EveryDType) {
  for (const DType dtype : DTypes()) {
    SCOPED_TRACE(ToString(dtype));
    const Tensor a = Tensor::FromVector<float>({-1, 2, 3}).To(dtype).To(OpDevice());
    const Tensor b = Tensor::FromVector<float>({1, 2, -3}).To(dtype).To(OpDevice());
    EXPECT_EQ(FlagsOf(Equal(a, b)), (Flags{0, 1, 0}));
    EXPECT_EQ(FlagsOf(NotEqual(a, b)), (Flags{1, 0, 1}));
    EXPECT_EQ(FlagsOf(Less(a, b)), (Flags{1, 0, 0}));
    EXPECT_EQ(FlagsOf(LessEqual(a, b)), (Flags{1, 1, 0}));
    EXPECT_EQ(FlagsOf(Greater(a, b)), (Flags{0, 0, 1}));
    EXPECT_EQ(FlagsOf(GreaterEqual(a, b)), (Flags{0, 1, 1}));
    if (IsFloating(dtype)) {  // most can't hold such a number
      EXPECT_EQ(FlagsOf(LessEqual(a, 1e300)), (Flags{1, 1, 1}));
      EXPECT_EQ(FlagsOf(Greater(a, -1e300)), (Flags{1, 1, 1}));
    }
    EXPECT_EQ(FlagsOf(Equal(a, 2)), (Flags{0, 1, 0}));
    EXPECT_EQ(FlagsOf(NotEqual(a, 2)), (Flags{1, 0, 1}));
    EXPECT_EQ(FlagsOf(Less(a, 2)), (Flags{1, 0, 0}));
    EXPECT_EQ(FlagsOf(LessEqual(a, 2)), (Flags{1, 1, 0}));
    EXPECT_EQ(FlagsOf(Greater(a, 2)), (Flags{0, 0, 1}));
    EXPECT_EQ(FlagsOf(GreaterEqual(a, 2)), (Flags{0, 1, 1}));
  }
}

TEST(Compare, NumbersThatFloat32LacksAreExact) {
  const int64_t large = (int64_t{1} << 53) + 1;
  const Tensor a = Tensor::FromVector<int64_t>({large}).To(OpDevice());
  const Tensor b = Tensor::FromVector<int64_t>({large - 1}).To(OpDevice());
  EXPECT_EQ(FlagsOf(Greater(a, b)), (Flags{1}));
  const Tensor bytes = Tensor::FromVector<uint8_t>({0, 200}).To(OpDevice());
  EXPECT_EQ(FlagsOf(Less(bytes, 100)), (Flags{1, 0}));
}

TEST(Compare, NaN) {
  const float nan = std::nanf("");
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Tensor a = Tensor::FromVector<float>({nan, nan, 1, INFINITY}).To(dtype).To(OpDevice());
    const Tensor b = Tensor::FromVector<float>({nan, 1, nan, INFINITY}).To(dtype).To(OpDevice());
    EXPECT_EQ(FlagsOf(Equal(a, b)), (Flags{0, 0, 0, 1}));
    EXPECT_EQ(FlagsOf(NotEqual(a, b)), (Flags{1, 1, 1, 0}));
    EXPECT_EQ(FlagsOf(LessEqual(a, b)), (Flags{0, 0, 0, 1}));
    EXPECT_EQ(FlagsOf(GreaterEqual(a, b)), (Flags{0, 0, 0, 1}));
    EXPECT_EQ(FlagsOf(Less(a, b)), (Flags{0, 0, 0, 0}));
  }
}

TEST(Compare, Broadcast) {
  const Tensor row = Tensor::FromVector<float>({0, 1, 2}).To(OpDevice());
  const Tensor column = Tensor::FromVector<float>({1, 2}, {2, 1}).To(OpDevice());
  const Tensor y = Less(row, column);
  EXPECT_EQ(y.shape(), (Shape{2, 3}));
  EXPECT_EQ(FlagsOf(y), (Flags{1, 0, 0, 1, 1, 0}));
  EXPECT_EQ(FlagsOf(Greater(row, column)), (Flags{0, 0, 1, 0, 0, 0}));
  EXPECT_EQ(Equal(Tensor::Zeros({0, 3}).To(OpDevice()), row).shape(), (Shape{0, 3}));
  EXPECT_EQ(FlagsOf(Equal(Tensor::Full({}, 2).To(OpDevice()), 2)), (Flags{1}));
}

TEST(Compare, Large) {
  std::vector<float> values(60 * 50 * 40);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 7919 % 1000);
  const Tensor x = Tensor::FromVector(values, {60, 50, 40}).To(OpDevice());
  const Tensor limits =
      Tensor::FromVector(std::vector<float>(values.begin(), values.begin() + 50), {50, 1})
          .To(OpDevice());
  const Flags flags = FlagsOf(LessEqual(x, limits));
  const Flags same = FlagsOf(Equal(x, x));
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(flags[i], values[i] <= values[i / 40 % 50]) << i;
    ASSERT_EQ(same[i], 1);
  }
}

TEST(Compare, Logical) {
  const Tensor a = Tensor::FromVector<uint8_t>({0, 0, 1, 2}).To(OpDevice());
  const Tensor b = Tensor::FromVector<uint8_t>({0, 4, 0, 8}).To(OpDevice());
  EXPECT_EQ(FlagsOf(LogicalAnd(a, b)), (Flags{0, 0, 0, 1}));
  EXPECT_EQ(FlagsOf(LogicalOr(a, b)), (Flags{0, 1, 1, 1}));
  EXPECT_EQ(FlagsOf(LogicalNot(a)), (Flags{1, 1, 0, 0}));
  EXPECT_EQ(FlagsOf(LogicalAnd(Equal(a, 0), Equal(b, 0))), (Flags{1, 0, 0, 0}));
  EXPECT_EQ(FlagsOf(LogicalNot(Equal(a, 0))), (Flags{0, 0, 1, 1}));
}

TEST(Compare, Errors) {
  const Tensor x = Tensor::Zeros({2, 3});
  const auto message = [](const auto& run) {
    try {
      run();
    } catch (const Error& e) {
      return e.message();
    }
    return std::string("no error");
  };
  EXPECT_EQ(message([&] { Less(x, Tensor::Zeros({2})); }),
            "[less] shapes [2, 3] and [2] don't broadcast");
  EXPECT_EQ(message([&] { Equal(x, Tensor::Zeros({3}, DType::kI64)); }),
            "[equal] expected operands of one dtype but got float32 and int64");
  EXPECT_EQ(message([&] { Less(Tensor::Zeros({2}, DType::kI64), 0.5); }),
            "[less] int64 can't hold 0.5");
  EXPECT_EQ(message([&] { Equal(Tensor::Zeros({2}, DType::kU8), 256); }),
            "[equal] uint8 can't hold 256");
  EXPECT_EQ(message([&] { Equal(Tensor::Zeros({2}, DType::kBool), 2); }),
            "[equal] bool can't hold 2");
  EXPECT_EQ(message([&] { LogicalNot(x); }),
            "[logical_not] expected bool or uint8 but got float32");
  EXPECT_EQ(message([&] { LogicalAnd(x, x); }),
            "[logical_and] expected bool or uint8 but got float32");
}

}  // namespace
}  // namespace lathe
