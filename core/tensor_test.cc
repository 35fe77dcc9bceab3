#include "lathe/core/tensor.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "lathe/core/broadcast.h"

namespace lathe {
namespace {

TEST(Tensor, Construction) {
  EXPECT_FALSE(Tensor().defined());
  const Tensor t = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(t.shape(), (Shape{2, 3}));
  EXPECT_EQ(t.dim(-1), 3);
  EXPECT_EQ(t.numel(), 6);
  EXPECT_EQ(t.bytes(), 24);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(t.raw_data()) % 64, 0u);
  EXPECT_EQ(ToString(t.shape()), "[2, 3]");
  EXPECT_EQ(Tensor::Full({2}, 1.5, DType::kBF16).To(DType::kF32).ToVector<float>(),
            (std::vector<float>{1.5, 1.5}));
  EXPECT_EQ(Tensor::Zeros({0, 3}).numel(), 0);
  EXPECT_EQ(Tensor::Full({}, 7, DType::kI64).Item(), 7);
  EXPECT_EQ(Tensor::Full({}, 255.5, DType::kU8).Item(), 255);  // the fraction is cut off
  EXPECT_EQ(Tensor::Full({}, -0x1p63, DType::kI64).Item(), -0x1p63);
  EXPECT_EQ(Tensor::Full({}, 65519, DType::kF16).Item(), 65504);
  EXPECT_EQ(Tensor::Full({}, INFINITY, DType::kF16).Item(), INFINITY);
  const auto message = [](double value, DType dtype) -> std::string {
    try {
      Tensor::Full({1}, value, dtype);
    } catch (const Error& e) {
      return e.message();
    }
    return "";
  };
  EXPECT_EQ(message(300, DType::kU8), "[full] uint8 can't hold 300");
  EXPECT_EQ(message(-1, DType::kU8), "[full] uint8 can't hold -1");
  EXPECT_EQ(message(NAN, DType::kI32), "[full] int32 can't hold nan");
  EXPECT_EQ(message(0x1p63, DType::kI64), "[full] int64 can't hold 9.22337e+18");
  EXPECT_EQ(message(65520, DType::kF16), "[full] float16 can't hold 65520");
  EXPECT_EQ(message(3.4e38, DType::kBF16), "[full] bfloat16 can't hold 3.4e+38");
  EXPECT_EQ(message(-1e39, DType::kF32), "[full] float32 can't hold -1e+39");
  EXPECT_EQ(message(1e300, DType::kF64), "");
  EXPECT_THROW(Tensor::Zeros({2}, DType::kI64).Fill(INFINITY), Error);
  EXPECT_THROW(Tensor::FromVector<float>({1, 2}, {3}), Error);
  EXPECT_THROW(Tensor::Empty({-1}), Error);
  EXPECT_THROW(t.dim(2), Error);
}

TEST(Tensor, MemoryIsCounted) {
  const int64_t before = TensorMemory().now;
  for (const int64_t n : {int64_t{100}, int64_t{100} << 10, int64_t{100} << 20}) {
    ResetPeakMemory();
    EXPECT_EQ(TensorMemory().peak, before);
    {
      const Tensor x = Tensor::Empty({n}, DType::kU8);
      const Tensor view = x.Slice(1, 2);
      const Tensor y = x.Clone();
    }
    const Tensor rest = Tensor::Empty({n}, DType::kU8);
    EXPECT_NEAR(TensorMemory().now, before + n, 4096);
    EXPECT_NEAR(TensorMemory().peak, before + 2 * n, 2 * 4096);
  }
  EXPECT_EQ(TensorMemory().now, before);
}

// Memory that each step needs must not come from the system each time: fresh pages cost more than
// the work on them.
TEST(Tensor, LargeBlocksAreUsedAgain) {
  constexpr int64_t kBytes = int64_t{200} << 20;
  const void* first = Tensor::Empty({kBytes}, DType::kU8).raw_data();
  Tensor again = Tensor::Empty({kBytes}, DType::kU8);
  EXPECT_EQ(again.raw_data(), first);
  again.Fill(3);
  again = {};
  for (const int64_t bytes : {kBytes / 8, kBytes}) {  // from used memory, from fresh pages
    const Tensor zeros = Tensor::Zeros({bytes}, DType::kU8);
    const std::span<const uint8_t> values = zeros.values<uint8_t>();
    EXPECT_EQ(std::count(values.begin(), values.end(), 0), bytes);
  }
}

TEST(Tensor, TooLargeIsAnErrorAndNothingElseFails) {
  for (int i = 0; i < 3; ++i) EXPECT_THROW(Tensor::Empty({int64_t{1} << 50}, DType::kU8), Error);
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (const Shape& shape : {Shape{int64_t{1} << 62}, Shape{most}, Shape{most, most},
                             Shape{int64_t{1} << 32, int64_t{1} << 32}}) {
    EXPECT_THROW(Tensor::Empty(shape), Error) << ToString(shape);
    EXPECT_THROW(Tensor::Zeros(shape, DType::kU8), Error) << ToString(shape);
  }
  EXPECT_EQ(Tensor::Empty({int64_t{1} << 60, 0}).numel(), 0);
  EXPECT_THROW(Tensor::Empty({0}).Reshape({int64_t{1} << 32, int64_t{1} << 32}), Error);
  EXPECT_THROW(Tensor::Empty({6}).Reshape({-2, -3}), Error);
  EXPECT_EQ(Tensor::Full({int64_t{100} << 20}, 1, DType::kU8).data<uint8_t>()[7], 1);
  EXPECT_EQ(Tensor::Zeros({int64_t{200} << 20}, DType::kU8).data<uint8_t>()[7], 0);  // fresh pages
}

TEST(Tensor, UnallocatedHasNoValues) {
  const Tensor t = Tensor::Unallocated({2});
  EXPECT_TRUE(t.defined());
  EXPECT_FALSE(t.allocated());
  EXPECT_THROW(t.raw_data(), Error);
  EXPECT_THROW(Tensor().data<float>(), Error);
  EXPECT_THROW(Tensor::Zeros({2}).data<double>(), Error);
  EXPECT_THROW(Tensor::Zeros({2}).Item(), Error);
}

TEST(Tensor, AnUndefinedOneIsAnError) {
  const auto expect_error = [](const auto& use) {
    try {
      use(Tensor());
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& e) {
      EXPECT_EQ(e.message(), "[tensor] the tensor is undefined");
    }
  };
  expect_error([](const Tensor& t) { t.shape(); });
  expect_error([](const Tensor& t) { t.ndim(); });
  expect_error([](const Tensor& t) { t.numel(); });
  expect_error([](const Tensor& t) { t.dtype(); });
  expect_error([](const Tensor& t) { t.device(); });
  expect_error([](const Tensor& t) { t.is_leaf(); });
  expect_error([](const Tensor& t) { t.data<float>(); });
  expect_error([](const Tensor& t) { t.Item(); });
  expect_error([](const Tensor& t) { t.Detach(); });
  expect_error([](const Tensor& t) { t.grad(); });
  expect_error([](Tensor t) { t.MaterializeGrad(); });
  expect_error([](Tensor t) { t.SetGrad(Tensor::Zeros({2})); });
}

TEST(Tensor, ViewsShareStorage) {
  Tensor t = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {3, 2});
  Tensor rows = t.Slice(1, 3).Slice(1, 2);
  rows.Fill(9);
  EXPECT_EQ(t.ToVector<float>(), (std::vector<float>{1, 2, 3, 4, 9, 9}));
  EXPECT_EQ(t.Reshape({-1, 3}).shape(), (Shape{2, 3}));
  EXPECT_EQ(t.Reshape({6}).raw_data(), t.raw_data());
  const Tensor copy = t.Clone();
  t.Fill(0);
  EXPECT_EQ(copy.ToVector<float>()[0], 1);
  EXPECT_THROW(t.Slice(2, 4), Error);
  EXPECT_THROW(t.Reshape({4}), Error);
  EXPECT_THROW(t.Reshape({-1, 4}), Error);
}

TEST(Tensor, Conversions) {
  const Tensor t = Tensor::FromVector<float>({1.00390625f, -2.5f, 65504, 1e-7f});
  EXPECT_EQ(t.To(DType::kBF16).To(DType::kF32).ToVector<float>()[0], 1);  // a tie goes to even
  EXPECT_EQ(t.To(DType::kF16).To(DType::kF32).ToVector<float>()[2], 65504);
  EXPECT_EQ(t.To(DType::kI32).ToVector<int32_t>()[1], -2);
  EXPECT_EQ(t.To(DType::kF32).raw_data(), t.raw_data());
  EXPECT_NEAR(t.To(DType::kF16).To(DType::kF64).ToVector<double>()[3], 1e-7, 3e-8);
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(static_cast<float>(Float16(65520.0f)), inf);
  EXPECT_EQ(static_cast<float>(BFloat16(inf)), inf);
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::nanf("")))));
  EXPECT_TRUE(std::isnan(static_cast<float>(Float16(std::nanf("")))));
}

// Every finite half value survives the conversion to float and back.
TEST(Tensor, Float16RoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7c00) == 0x7c00 && (bits & 0x3ff) != 0) continue;  // NaN
    Float16 half;
    half.bits = static_cast<uint16_t>(bits);
    ASSERT_EQ(Float16(static_cast<float>(half)).bits, bits);
  }
}

TEST(Tensor, ChangesCount) {
  Tensor t = Tensor::Zeros({2});
  const int64_t before = t.impl()->storage->version();
  t.Fill(1);
  t.CopyFrom(Tensor::Zeros({2}));
  AddInPlace(t, Tensor::Zeros({2}));
  EXPECT_EQ(t.impl()->storage->version(), before + 3);
  EXPECT_THROW(t.CopyFrom(Tensor::Zeros({3})), Error);
}

TEST(Broadcast, Shapes) {
  EXPECT_EQ(BroadcastShape("op", {2, 1, 3}, {4, 1}), (Shape{2, 4, 3}));
  EXPECT_EQ(BroadcastShape("op", {}, {4}), (Shape{4}));
  EXPECT_EQ(BroadcastShape("op", {0, 1}, {1, 3}), (Shape{0, 3}));
  EXPECT_EQ(BroadcastStrides({4, 1}, {2, 4, 3}), (Shape{0, 1, 0}));
  EXPECT_THROW(BroadcastShape("op", {2}, {3}), Error);
}

TEST(Broadcast, SumToShape) {
  const Tensor t = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(SumToShape(t, {3}).ToVector<float>(), (std::vector<float>{5, 7, 9}));
  EXPECT_EQ(SumToShape(t, {2, 1}).ToVector<float>(), (std::vector<float>{6, 15}));
  EXPECT_EQ(SumToShape(t, {}).Item(), 21);
  EXPECT_EQ(SumToShape(Tensor::Zeros({0, 3}), {3}).ToVector<float>(), std::vector<float>(3, 0));
  EXPECT_THROW(SumToShape(t, {2}), Error);
}

// The order of each sum depends on the shapes alone, so any number of threads gives the same bits.
// bfloat16 is rounded once.
TEST(Broadcast, SumToShapeOfMany) {
  const std::vector<std::pair<Shape, std::vector<Shape>>> cases = {
      {{30, 40, 50},
       {{}, {50}, {40, 1}, {30, 1, 1}, {30, 1, 50}, {1, 40, 50}, {30, 40, 1}, {1, 40, 1}}},
      {{3000, 1, 7}, {{7}, {3000, 1, 1}, {1, 1, 1}}},
      {{7, 1, 3000}, {{3000}, {7, 1, 1}, {}}},
      {{5, 400, 33}, {{33}, {400, 1}, {5, 1, 33}, {5, 1, 1}}}};
  const int threads_before = omp_get_max_threads();
  for (const auto& [from, targets] : cases) {
    std::vector<float> values(static_cast<size_t>(NumElements(from)));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 7919 % 1001) / 7;
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      const Tensor x = Tensor::FromVector(values, from).To(dtype);
      const std::vector<double> stored = x.To(DType::kF64).ToVector<double>();
      for (const Shape& to : targets) {
        SCOPED_TRACE(ToString(from) + " to " + ToString(to) + " in " + ToString(dtype));
        const Shape strides = BroadcastStrides(to, from);
        std::vector<double> sums(static_cast<size_t>(NumElements(to)), 0);
        for (int64_t i = 0; i < x.numel(); ++i) {
          const int64_t column = i % from[2], row = i / from[2];
          sums[row / from[1] * strides[0] + row % from[1] * strides[1] + column * strides[2]] +=
              stored[i];
        }
        std::vector<std::vector<double>> results;
        for (const int threads : {1, 2, 5}) {
          omp_set_num_threads(threads);
          results.push_back(SumToShape(x, to).To(DType::kF64).ToVector<double>());
        }
        EXPECT_EQ(results[1], results[0]);
        EXPECT_EQ(results[2], results[0]);
        const double tolerance = dtype == DType::kBF16 ? 4e-3 : dtype == DType::kF32 ? 2e-6 : 1e-12;
        for (size_t i = 0; i < sums.size(); ++i)
          ASSERT_NEAR(results[0][i], sums[i], tolerance * sums[i]) << i;
      }
    }
  }
  omp_set_num_threads(threads_before);
}

}  // namespace
}  // namespace lathe
