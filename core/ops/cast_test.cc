#include "lathe/core/ops/cast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/broadcast.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

// Rounds x to bfloat16 by the definition: 8 significant bits.
double NearestBFloat16(float x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent;
  std::frexp(x, &exponent);
  const double unit = std::ldexp(1.0, exponent - 8);
  return std::nearbyint(x / unit) * unit;  // ties to even
}

// Tests on the checked device, which may be the host.
class CastTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  }
};

// Returns a tensor of these values on the checked device.
Tensor There(const std::vector<float>& values) {
  return Tensor::FromVector(values).To(CheckedDevice());
}

const std::vector<std::vector<Shape>> kShapes = {{{5}},    {{2, 3, 4}}, {{}},
                                                 {{0, 3}}, {{40, 33}},  {{7, 37}}};

// A cast to a narrow dtype and back rounds values and gradients to it. A step function has no
// derivative, so the identity stands in where central differences are taken.
TEST_F(CastTest, Op) {
  const auto identity = [](const Tensors& x) { return Scale(x[0], 1); };
  CheckOp({.name = "cast_bfloat16",
           .op = [](const Tensors& x) { return Cast(Cast(x[0], DType::kBF16), x[0].dtype()); },
           .composed = identity,
           .shapes = kShapes,
           .tolerance = 0x1p-9,
           .grad_tolerance = 0x1p-9,
           .float64 = false});
  CheckOp({.name = "cast_float16",
           .op = [](const Tensors& x) { return Cast(Cast(x[0], DType::kF16), x[0].dtype()); },
           .composed = identity,
           .shapes = kShapes,
           .tolerance = 0x1p-12,
           .grad_tolerance = 0x1p-12,
           .float64 = false});
  // A cast to a wider dtype and back changes nothing, for bfloat16 and float16 either.
  for (const DType wide : {DType::kF32, DType::kF64}) {
    CheckOp({.name = "cast_wider",
             .op = [wide](const Tensors& x) { return Cast(Cast(x[0], wide), x[0].dtype()); },
             .composed = identity,
             .shapes = kShapes,
             .tolerance = 1e-12,
             .grad_tolerance = 1e-12,
             .float64 = false,
             .activations = {0},
             // The cotangent is rounded to the activations' dtype.
             .bfloat16_tolerance = 0x1p-9,
             .float16_tolerance = 0x1p-12});
  }
}

TEST_F(CastTest, RoundsToNearestEven) {
  std::vector<float> values = {0.0f,  -0.0f,  1.0f,       1.00390625f, 1.01171875f, -1.00390625f,
                               3e38f, 1e-30f, 3.1415927f, -2.7182817f, 65504.0f,    1.0f / 3};
  for (int i = 0; i < 1000; ++i) values.push_back(std::sin(static_cast<float>(i)) * 100);
  const Tensor narrow = There(values).To(DType::kBF16);
  const std::vector<float> back = narrow.To(DType::kF32).ToVector<float>();
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(back[i], NearestBFloat16(values[i])) << i;
  const float infinity = std::numeric_limits<float>::infinity();
  const Tensor special = There({infinity, -infinity, std::nanf(""), 3.4e38f}).To(DType::kBF16);
  EXPECT_EQ(special.To(DType::kF32).ToVector<float>()[0], infinity);
  EXPECT_EQ(special.To(DType::kF32).ToVector<float>()[1], -infinity);
  EXPECT_TRUE(std::isnan(special.To(DType::kF32).ToVector<float>()[2]));
  EXPECT_EQ(special.To(DType::kF32).ToVector<float>()[3], infinity);
}

// Sums in place on the host are those of float, rounded. Some levels have code of their own for
// bfloat16: two registers are rounded together, and NaN takes another way.
TEST(AddInPlaceTest, IsTheRoundedSum) {
  for (const int64_t n : {1, 5, 1030, 40000}) {
    std::vector<float> a, b;
    uint32_t state = 1;
    const auto next = [&] {
      state = state * 1664525 + 1013904223;
      // A number of bfloat16 with any sign and fraction, and a magnitude from 2^-8 to 2^7.
      const uint32_t exponent = 119 + (state >> 24 & 15);
      return std::bit_cast<float>((state >> 31) << 31 | exponent << 23 | (state >> 8 & 127) << 16);
    };
    for (int64_t i = 0; i < n; ++i) {
      a.push_back(i % 97 == 96 ? std::nanf("") : next());
      b.push_back(i % 101 == 100 ? std::numeric_limits<float>::infinity() : next());
    }
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Tensor sum = Tensor::FromVector(a).To(dtype);
      AddInPlace(sum, Tensor::FromVector(b).To(dtype));
      const std::vector<float> sums = sum.To(DType::kF32).ToVector<float>();
      int64_t wrong = 0;
      for (size_t i = 0; i < sums.size(); ++i) {
        const float exact = a[i] + b[i];
        const double expected = dtype == DType::kF32 ? exact : NearestBFloat16(exact);
        wrong += std::isnan(exact) ? !std::isnan(sums[i]) : sums[i] != expected;
      }
      EXPECT_EQ(wrong, 0) << ToString(dtype) << ", " << n;
    }
  }
}

TEST_F(CastTest, GradientComesBackInTheInputsDType) {
  Tensor x = There({1, 2, 3});
  x.SetRequiresGrad(true);
  const Tensor y = Cast(Cast(x, DType::kBF16), DType::kF32);
  Backward(y, There({1, 0.5, -2}));
  EXPECT_EQ(x.grad().ToVector<float>(), std::vector<float>({1, 0.5, -2}));
  EXPECT_EQ(Cast(x, DType::kF32).impl(), x.impl());
}

TEST_F(CastTest, LowPrecisionCopyFollowsTheValues) {
  Tensor x = There({1, 2});
  const Tensor copy = LowPrecisionCopy(x, DType::kBF16);
  EXPECT_EQ(copy.To(DType::kF32).ToVector<float>(), std::vector<float>({1, 2}));
  EXPECT_EQ(LowPrecisionCopy(x, DType::kBF16).raw_data(), copy.raw_data());
  x.Fill(7);
  EXPECT_EQ(LowPrecisionCopy(x, DType::kBF16).To(DType::kF32).ToVector<float>(),
            std::vector<float>({7, 7}));
}

// --- Tensor::To between all dtypes, on the device ---

constexpr DType kAll[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64,
                          DType::kI64, DType::kI32,  DType::kU8,  DType::kBool};

float OfBits(uint32_t bits) { return std::bit_cast<float>(bits); }

template <typename T>
std::vector<T> Elements(const Tensor& t) {
  const Tensor host = t.To(Device{});
  return {host.data<T>(), host.data<T>() + host.numel()};
}

// Float32 is rounded to 16 bits as the formats' definitions say.
TEST_F(CastTest, Float32ToBFloat16Bits) {
  const std::vector<std::pair<uint32_t, uint16_t>> cases = {
      {0x3f808000, 0x3f80},  // a tie goes to the even one: down,
      {0x3f818000, 0x3f82},  // and up
      {0x3f808001, 0x3f81}, {0x3f807fff, 0x3f80}, {0xbf808000, 0xbf80},
      {0xbf818000, 0xbf82}, {0x3fff8000, 0x4000},  // the next power of two
      {0x7f7f7fff, 0x7f7f}, {0x7f7f8000, 0x7f80},  // overflow
      {0xff7fffff, 0xff80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
      {0x00000000, 0x0000}, {0x80000000, 0x8000}, {0x00008000, 0x0000},
      {0x00018000, 0x0002}, {0x00400000, 0x0040},  // subnormal
      {0x007fffff, 0x0080}, {0x80008001, 0x8001}};
  std::vector<float> values;
  for (const auto& [from, to] : cases) values.push_back(OfBits(from));
  const auto narrow = Elements<BFloat16>(There(values).To(DType::kBF16));
  for (size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(narrow[i].bits, cases[i].second) << i;
}

TEST_F(CastTest, Float32ToFloat16Bits) {
  const std::vector<std::pair<float, uint16_t>> cases = {
      {1 + 0x1p-11f, 0x3c00},      // a tie goes to the even one: down,
      {1 + 3 * 0x1p-11f, 0x3c02},  // and up
      {1 + 0x1p-11f + 0x1p-23f, 0x3c01},
      {-1 - 0x1p-11f, 0xbc00},
      {2 - 0x1p-12f, 0x4000},
      {65504, 0x7bff},
      {OfBits(0x477fefff), 0x7bff},
      {65520, 0x7c00},  // overflow
      {-65520, 0xfc00},
      {1e30f, 0x7c00},
      {OfBits(0x7f800000), 0x7c00},
      {OfBits(0xff800000), 0xfc00},
      {0.0f, 0x0000},
      {-0.0f, 0x8000},
      {0x1p-14f, 0x0400},
      {0x1p-24f, 0x0001},
      {0x1p-25f, 0x0000},
      {OfBits(0x33000001), 0x0001},  // subnormal
      {3 * 0x1p-25f, 0x0002},
      {-5 * 0x1p-25f, 0x8002},
      {0x1p-14f - 0x1p-25f, 0x0400},
      {-0x1p-26f, 0x8000},
      {1e-40f, 0x0000}};
  std::vector<float> values;
  for (const auto& [from, to] : cases) values.push_back(from);
  const auto narrow = Elements<Float16>(There(values).To(DType::kF16));
  for (size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(narrow[i].bits, cases[i].second) << i;
}

// NaN stays NaN, even if its payload lies only in bits that are dropped.
TEST_F(CastTest, NaNStaysNaN) {
  const Tensor x = There({OfBits(0x7f800001), OfBits(0xffffffff), OfBits(0x7fc00000)});
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF64}) {
    for (const float v : Elements<float>(x.To(dtype).To(DType::kF32))) EXPECT_TRUE(std::isnan(v));
  }
}

// Returns hard cases for conversions, [n] on the host. They include zeros, halves, ties, the
// largest numbers, infinities, NaN and subnormals; for 16-bit floating dtypes all bit patterns but
// one. For floating dtypes n is odd.
Tensor HardCases(DType dtype) {
  std::vector<float> singles;
  for (uint32_t upper = 0; upper < 0x10000; upper += 13) {
    for (const uint32_t lower :
         {0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff}) {
      singles.push_back(OfBits(upper << 16 | lower));
    }
  }
  for (int i = -300; i <= 300; ++i) singles.push_back(static_cast<float>(i) / 2);
  std::vector<int64_t> integers = {INT64_MIN, INT64_MAX, 0, 100, 255, 256};
  for (int bit = 0; bit < 63; ++bit) {
    for (const int64_t more : {-1, 0, 1, 3}) {
      integers.push_back((int64_t{1} << bit) + more);
      integers.push_back(-integers.back());
      integers.push_back(integers.back() + (int64_t{1} << (bit / 2)));
    }
  }
  if (dtype == DType::kF32) return Tensor::FromVector(singles);
  if (dtype == DType::kF64) {
    std::vector<double> doubles = {1e300, -1e300, 1e-320, 0x1.fffffefp127, 0x1.fffffffp127};
    for (const float v : singles) {
      doubles.push_back(v);
      doubles.push_back(v * (1 + 0x1p-40));
    }
    return Tensor::FromVector(doubles);
  }
  if (dtype == DType::kBF16 || dtype == DType::kF16) {
    const Tensor all = Tensor::Empty({0x10000}, dtype);
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      static_cast<uint16_t*>(all.raw_data())[bits] = static_cast<uint16_t>(bits);
    }
    return all.Slice(0, 0xffff);
  }
  return Tensor::FromVector(integers).To(dtype);  // modulo 2^bits; bool: true unless 0
}

// Sets numbers to 0 that no integer of type `to` represents, because C++ leaves such conversions
// undefined.
void ClearOutOfRange(const Tensor& host, DType to) {
  if (!IsFloating(host.dtype()) || IsFloating(to) || to == DType::kBool) return;
  const double low = to == DType::kU8 ? 0 : to == DType::kI32 ? -0x1p31 : -0x1p63;
  const double high = to == DType::kU8 ? 0x1p8 : to == DType::kI32 ? 0x1p31 : 0x1p63;
  DispatchAll(host.dtype(), [&](auto tag) {
    for (auto& v : host.values<decltype(tag)>()) {
      const double whole = std::trunc(static_cast<double>(v));
      if (!(whole >= low && whole < high)) v = decltype(tag){};
    }
  });
}

template <typename T>
std::string Bits(const T& value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  std::ostringstream text;
  text << "0x" << std::hex << bits;
  return text.str();
}

// Describes the elements whose bits differ; "" if none do. All NaNs count as equal.
std::string Different(const Tensor& a, const Tensor& b) {
  return DispatchAll(a.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const Tensor left = a.To(Device{}), right = b.To(Device{});
    std::string first = left.numel() == right.numel() ? "" : "the sizes; ";
    int64_t different = first.empty() ? 0 : 1;
    for (int64_t i = 0; i < std::min(left.numel(), right.numel()); ++i) {
      const T &x = left.data<T>()[i], &y = right.data<T>()[i];
      if constexpr (!std::is_integral_v<T>) {
        if (std::isnan(static_cast<double>(x)) && std::isnan(static_cast<double>(y))) continue;
      }
      if (std::memcmp(&x, &y, sizeof(T)) == 0) continue;
      if (++different == 1) first = "[" + std::to_string(i) + "] " + Bits(x) + " and " + Bits(y);
    }
    return different == 0 ? "" : std::to_string(different) + " differ, first " + first;
  });
}

TEST_F(CastTest, AllDTypesAsOnTheHost) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device to compare with the host";
  for (const DType from : kAll) {
    for (const DType to : kAll) {
      if (from == to) continue;
      SCOPED_TRACE(std::string(ToString(from)) + " to " + ToString(to));
      const Tensor host = HardCases(from);
      ClearOutOfRange(host, to);
      const Tensor x = host.To(CheckedDevice());
      const Tensor y = x.To(to);
      EXPECT_EQ(y.dtype(), to);
      EXPECT_EQ(y.device(), CheckedDevice());
      EXPECT_EQ(Different(y, host.To(to)), "");
    }
  }
}

// Sizes that are no multiple of a pack and slices at addresses that don't allow 16-byte loads give
// the host's results. The elements around the target keep their values.
TEST_F(CastTest, OddSizesAndUnalignedSlicesAsOnTheHost) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device to compare with the host";
  constexpr int64_t kMost = 1031, kMargin = 16;
  for (const DType from : kAll) {
    for (const DType to : kAll) {
      if (from == to) continue;
      SCOPED_TRACE(std::string(ToString(from)) + " to " + ToString(to));
      std::vector<int32_t> numbers(kMost + kMargin);
      for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int32_t>(i * 37 % 101);
      const Tensor host = Tensor::FromVector(numbers).To(from), x = host.To(CheckedDevice());
      for (const int64_t n :
           {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{5}, int64_t{255}, kMost}) {
        for (const auto& [begin, target] : std::vector<std::pair<int64_t, int64_t>>{
                 {0, 0}, {1, 0}, {0, 1}, {1, 1}, {3, 2}, {16, 16}}) {
          const Tensor expected = Tensor::Full({n + 2 * kMargin}, 1, to);
          const Tensor y = Tensor::Full({n + 2 * kMargin}, 1, to, CheckedDevice());
          expected.Slice(target, target + n).CopyFrom(host.Slice(begin, begin + n));
          y.Slice(target, target + n).CopyFrom(x.Slice(begin, begin + n));
          EXPECT_EQ(Different(y, expected), "") << n << " from " << begin << " to " << target;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lathe
