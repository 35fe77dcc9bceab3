// Compares matrix products on cuda:0 with the host's. Skipped without a device.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "lathe/core/base/gemm_options.h"
#include "lathe/core/base/log.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/gemm.h"
#include "lathe/core/kernels/gemm_kernels.h"
#include "lathe/core/tensor.h"

namespace lathe {
namespace {

const Device kGpu = {DeviceType::kCUDA, 0};

class GemmOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    DeviceBackend* backend = FindDeviceBackend();
    setenv("LATHE_TUNE_CACHE", "", 1);
    if (backend == nullptr) GTEST_SKIP() << "built without CUDA";
    if (backend->Count() == 0) GTEST_SKIP() << "no GPU: " << backend->UnavailableReason();
  }
  void TearDown() override { SetGemmOptions({}); }
};

struct Case {
  int64_t M, N, K;
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
  int64_t pad = 0, shift = 0;  // elements between rows, and before the first
  bool sums = false;           // of A's rows; needs a transposed A and a float32 C
};

std::vector<float> Values(int64_t n, float seed) {
  std::vector<float> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(seed + 0.37f * static_cast<float>(i % 10007));
  }
  return values;
}

// Compares the result with the host's product in float64, from the same rounded elements. `c` holds
// the values before the product.
void ExpectProduct(const Case& t, const std::vector<float>& is, const Tensor& a, const Tensor& b,
                   const Tensor& c, const Tensor& bias, double tolerance) {
  const int64_t lda = (t.transpose_a ? t.M : t.K) + t.pad;
  const int64_t ldb = (t.transpose_b ? t.K : t.N) + t.pad;
  const int64_t ldc = t.N + t.pad;
  const std::vector<double> wide_a = a.To(DType::kF64).ToVector<double>();
  const std::vector<double> wide_b = b.To(DType::kF64).ToVector<double>();
  const std::vector<double> wide_bias = bias.To(DType::kF64).ToVector<double>();
  std::vector<double> expected = c.To(DType::kF64).ToVector<double>();
  Gemm({.a = t.transpose_a, .b = t.transpose_b}, t.M, t.N, t.K, wide_a.data() + t.shift, lda,
       wide_b.data() + t.shift, ldb, t.accumulate ? 1 : 0, expected.data() + t.shift, ldc,
       t.bias ? wide_bias.data() + t.shift : nullptr);
  double largest = 1;
  for (double x : expected) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < is.size(); ++i) {
    const int64_t in_c = static_cast<int64_t>(i) - t.shift;
    const bool outside = in_c < 0 || in_c % ldc >= t.N;
    EXPECT_NEAR(is[i], expected[i], outside ? 0 : tolerance * largest) << "element " << i;
    if (testing::Test::HasFailure()) break;
  }
}

// Compares the sums of A's columns as it is stored; `were` holds the values before the product.
void ExpectSums(const Case& t, const std::vector<float>& are, const std::vector<float>& were,
                const Tensor& a) {
  const int64_t lda = t.M + t.pad;
  const std::vector<double> wide_a = a.To(DType::kF64).ToVector<double>();
  for (int64_t m = 0; m < t.M; ++m) {
    double sum = t.accumulate ? were[static_cast<size_t>(m + t.shift)] : 0;
    for (int64_t k = 0; k < t.K; ++k) sum += wide_a[static_cast<size_t>(t.shift + k * lda + m)];
    EXPECT_NEAR(are[static_cast<size_t>(m + t.shift)], sum, 1e-5 * (10 + std::abs(sum)))
        << "sum " << m;
  }
}

// Computes the product on the device, with elements of type T and a C of type C. Compares it with
// the host's product in float64, from the same rounded elements. Returns the device's result.
template <typename T, typename C>
std::vector<float> Try(const Case& t, double tolerance) {
  SCOPED_TRACE(testing::Message() << ToString(DTypeOf<T>::value) << " to "
                                  << ToString(DTypeOf<C>::value) << ": " << t.M << " " << t.N << " "
                                  << t.K << " transposed " << t.transpose_a << t.transpose_b
                                  << " accumulate " << t.accumulate << " bias " << t.bias << " pad "
                                  << t.pad << " shift " << t.shift << " sums " << t.sums);
  const int64_t lda = (t.transpose_a ? t.M : t.K) + t.pad, a_rows = t.transpose_a ? t.K : t.M;
  const int64_t ldb = (t.transpose_b ? t.K : t.N) + t.pad, b_rows = t.transpose_b ? t.N : t.K;
  const int64_t ldc = t.N + t.pad;
  const auto on_host = [&](int64_t n, float seed, DType type) {
    return Tensor::FromVector(Values(n + t.shift, seed)).To(type);
  };
  const Tensor a = on_host(a_rows * lda, 1, DTypeOf<T>::value);
  const Tensor b = on_host(b_rows * ldb, 2, DTypeOf<T>::value);
  const Tensor c = on_host(t.M * ldc, 3, DTypeOf<C>::value);
  const Tensor bias = on_host(t.N, 4, DType::kF32);
  const Tensor a_there = a.To(kGpu), b_there = b.To(kGpu), c_there = c.To(kGpu);
  const Tensor bias_there = bias.To(kGpu);
  const Tensor sums = on_host(t.M, 5, DType::kF32), sums_there = sums.To(kGpu);
  DeviceKernels<GemmKernels>().product({
      .transpose_a = t.transpose_a,
      .transpose_b = t.transpose_b,
      .M = t.M,
      .N = t.N,
      .K = t.K,
      .a = a_there.data<T>() + t.shift,
      .lda = lda,
      .b = b_there.data<T>() + t.shift,
      .ldb = ldb,
      .beta = t.accumulate ? 1.0f : 0.0f,
      .c = c_there.data<C>() + t.shift,
      .ldc = ldc,
      .bias = t.bias ? bias_there.data<float>() + t.shift : nullptr,
      .type = DTypeOf<T>::value,
      .c_type = DTypeOf<C>::value,
      .a_sums = t.sums ? sums_there.data<float>() + t.shift : nullptr,
  });
  const std::vector<float> is = c_there.To(Device{}).To(DType::kF32).ToVector<float>();
  ExpectProduct(t, is, a, b, c, bias, tolerance);
  if (t.sums) {
    ExpectSums(t, sums_there.To(Device{}).ToVector<float>(), sums.ToVector<float>(), a);
  }
  return is;
}

void TryAll(const Case& t) {
  Try<float, float>(t, 1e-5);
  Try<BFloat16, BFloat16>(t, 1e-2);
  Try<BFloat16, float>(t, 1e-5);
  Try<Float16, Float16>(t, 2e-3);
  Try<Float16, float>(t, 1e-5);
}

TEST_F(GemmOnDevice, MatchesTheHost) {
  for (int bits = 0; bits < 4; ++bits) {
    const bool ta = (bits & 1) != 0, tb = (bits & 2) != 0;
    for (const auto& [M, N, K] : {std::tuple{1, 1, 1},
                                  {33, 17, 65},
                                  {64, 128, 96},
                                  {1, 40, 24},
                                  {40, 1, 24},
                                  {7, 9, 0},
                                  {0, 9, 7},
                                  {9, 0, 7}}) {
      TryAll({M, N, K, ta, tb});
      TryAll({M, N, K, ta, tb, true});
      TryAll({M, N, K, ta, tb, false, true});
    }
  }
}

// The sums of A's rows are right in shapes like those of weight and bias gradients. The library
// computes both in one product if it can.
TEST_F(GemmOnDevice, SumsRowsOfA) {
  for (const bool tune : {false, true}) {
    TuneGemms(tune);
    for (const auto& [M, N, K] : {std::tuple{64, 128, 96},
                                  {768, 768, 130},
                                  {96, 768, 517},
                                  {768, 96, 33},
                                  {2, 768, 32},
                                  {17, 33, 65},
                                  {1, 1, 1},
                                  {7, 9, 0},
                                  {9, 0, 7},
                                  {0, 9, 7}}) {
      for (const bool accumulate : {false, true}) {
        for (const int64_t shift : {0, 1, 8}) {
          if (shift != 0 && M > 64) continue;
          const Case t = {M, N, K, true, false, accumulate, false, 0, shift, true};
          Try<BFloat16, float>(t, 1e-5);
          Try<Float16, float>(t, 1e-5);
          Try<float, float>(t, 1e-5);
        }
      }
    }
  }
}

// A batch gives the same as its single products, whether or not the library runs it as one.
TEST_F(GemmOnDevice, MultipliesBatches) {
  constexpr int64_t kBatch = 2, kM = 128, kN = 96, kK = 130, kGap = 64;
  constexpr int64_t kStride = kM * kK + kN * kK + kGap;  // more than any matrix has
  for (const bool tune : {false, true}) {
    TuneGemms(tune);
    for (const bool weight_gradient : {false, true}) {
      const auto there = [](float seed, DType type) {
        return Tensor::FromVector(Values(kBatch * kStride, seed)).To(type).To(kGpu);
      };
      const Tensor a = there(1, DType::kBF16), b = there(2, DType::kBF16);
      const Tensor bias = there(4, DType::kF32);
      const DType c_type = weight_gradient ? DType::kF32 : DType::kBF16;
      const Tensor c = there(3, c_type), expected = there(3, c_type);
      const Tensor sums = there(5, DType::kF32), expected_sums = there(5, DType::kF32);
      const auto multiply = [&](int64_t first, int64_t batch, const Tensor& to,
                                const Tensor& sums_to) {
        DeviceKernels<GemmKernels>().product(
            {.transpose_a = weight_gradient,
             .transpose_b = !weight_gradient,
             .M = kM,
             .N = kN,
             .K = kK,
             .a = a.data<BFloat16>() + (weight_gradient ? first * kStride : 0),
             .lda = weight_gradient ? kM : kK,
             .b = b.data<BFloat16>() + (weight_gradient ? 0 : first * kStride),
             .ldb = weight_gradient ? kN : kK,
             .beta = 0,
             .c = static_cast<char*>(to.raw_data()) + first * kStride * SizeOf(c_type),
             .ldc = kN,
             .bias = weight_gradient ? nullptr : bias.data<float>() + first * kStride,
             .type = DType::kBF16,
             .c_type = c_type,
             .a_sums = weight_gradient ? sums_to.data<float>() + first * kStride : nullptr,
             .batch = batch,
             .a_stride = weight_gradient ? kStride : 0,
             .b_stride = weight_gradient ? 0 : kStride,
             .c_stride = kStride,
             .bias_stride = kStride});
      };
      multiply(0, kBatch, c, sums);
      for (int64_t i = 0; i < kBatch; ++i) multiply(i, 1, expected, expected_sums);
      const auto expect_near = [](const Tensor& is, const Tensor& to, double tolerance) {
        const std::vector<float> x = is.To(Device{}).To(DType::kF32).ToVector<float>();
        const std::vector<float> y = to.To(Device{}).To(DType::kF32).ToVector<float>();
        for (size_t i = 0; i < x.size(); ++i) {
          ASSERT_NEAR(x[i], y[i], tolerance * (10 + std::abs(y[i]))) << i;
        }
      };
      expect_near(c, expected, weight_gradient ? 1e-5 : 1e-2);
      expect_near(sums, expected_sums, 1e-5);
    }
  }
}

// Matrices may begin at any element, such as 2-byte elements at odd multiples of 2. Rows may have
// odd lengths.
TEST_F(GemmOnDevice, TakesAnyAlignment) {
  for (const int64_t pad : {0, 1, 4}) {
    for (const int64_t shift : {1, 2, 3, 4, 8}) {
      TryAll({24, 40, 16, false, true, false, true, pad, shift});
      TryAll({24, 40, 16, true, false, true, false, pad, shift});
    }
  }
}

TEST_F(GemmOnDevice, TakesLargeSizes) {
  Try<BFloat16, BFloat16>({517, 768, 768, false, true, false, true}, 1e-2);
  Try<BFloat16, float>({768, 768, 517, true, false, true}, 1e-5);
  Try<float, float>({130, 130, 1000, false, false}, 1e-5);
}

// Biases and their gradients come with ordinary products, without separate kernels.
TEST_F(GemmOnDevice, DoesWhatIsAskedInOneProduct) {
  ShowDebugLog(true);
  testing::internal::CaptureStderr();
  Try<BFloat16, BFloat16>({512, 768, 640, false, true, false, true}, 1e-2);
  Try<Float16, Float16>({512, 768, 640, false, true, false, true}, 2e-3);
  Try<float, float>({512, 768, 640, false, true, false, true}, 1e-5);
  Try<BFloat16, float>({768, 640, 512, true, false, false, false, 0, 0, true}, 1e-5);
  const std::string said = testing::internal::GetCapturedStderr();
  ShowDebugLog(false);
  EXPECT_EQ(said, "");
}

TEST_F(GemmOnDevice, RepeatsItself) {
  UseDeterministicGemms(true);
  const Case t = {64, 64, 2048, true, false, true};
  EXPECT_EQ((Try<BFloat16, float>(t, 1e-5)), (Try<BFloat16, float>(t, 1e-5)));
  const Case sums = {64, 64, 2048, true, false, false, false, 0, 0, true};
  EXPECT_EQ((Try<BFloat16, float>(sums, 1e-5)), (Try<BFloat16, float>(sums, 1e-5)));
}

TEST_F(GemmOnDevice, IsRightWhenTuned) {
  TuneGemms(true);
  TryAll({48, 72, 160, false, true});
  TryAll({48, 72, 160, true, false, true});
  TryAll({48, 72, 160, false, true, false, true});
}

TEST_F(GemmOnDevice, RoundsToTF32OnlyWhenAsked) {
  const auto exact = Try<float, float>({64, 64, 256}, 3e-6);
  AllowTf32(true);
  const auto rounded = Try<float, float>({64, 64, 256}, 2e-3);
  // The emulator's products don't round, but those of all GPUs with kernels here do.
  EXPECT_EQ(rounded == exact, FindDeviceBackend()->DescribeBuild() == "emulated CUDA");
}

}  // namespace
}  // namespace lathe
