// What the tests of the device's optimizer kernels share. A fixture skips them where there is no
// device, and there are copies of structs in device memory.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "lathe/core/device_backend.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/optimizer_kernels.h"
#include "lathe/core/tensor.h"

namespace lathe {

inline constexpr Device kGpu = {DeviceType::kCUDA, 0};
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();
using Floats = std::vector<float>;

class DeviceOptimizer : public testing::Test {
 protected:
  void SetUp() override {
    DeviceBackend* backend = FindDeviceBackend();
    if (backend == nullptr) GTEST_SKIP() << "built without CUDA";
    if (backend->Count() == 0) GTEST_SKIP() << "no GPU: " << backend->UnavailableReason();
  }

  static const DeviceOptimizerKernels& Kernels() { return DeviceKernels<DeviceOptimizerKernels>(); }
  static Tensor ToDevice(const Floats& values) { return Tensor::FromVector(values).To(kGpu); }
  static Tensor Scalar(float value) { return Tensor::Full({}, value, DType::kF32, kGpu); }

  static Floats Waves(size_t n, double step, double from = 0) {
    Floats values(n);
    for (size_t i = 0; i < n; ++i) {
      values[i] = static_cast<float>(from + std::sin(step * static_cast<double>(i)));
    }
    return values;
  }

  static void ExpectClose(const Floats& actual, const Floats& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], 1e-6 * (1 + std::fabs(expected[i]))) << "element " << i;
    }
  }

  static float Norm(const Tensor& g) {
    const int64_t bytes = Kernels().norm_scratch_bytes(g.numel());
    const Tensor scratch = Tensor::Empty({bytes}, DType::kU8, kGpu), norm = Scalar(-1);
    Kernels().norm(norm.data<float>(), g.data<float>(), g.numel(), scratch.raw_data(), bytes);
    return static_cast<float>(norm.Item());
  }
};

template <typename T>
Tensor BytesToDevice(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return Tensor::FromVector(bytes).To(kGpu);
}

}  // namespace lathe
