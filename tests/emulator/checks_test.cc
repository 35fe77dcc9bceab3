// What the emulated device finds: accesses outside of what was handed out.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "lathe/core/cuda/launch.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/tensor.h"

namespace lathe::cuda {
namespace {

const Device kDevice = {DeviceType::kCUDA, 0};

Tensor Floats(int64_t n) { return Tensor::Zeros({n}, DType::kF32, kDevice); }

// --- accesses outside of what was handed out, under AddressSanitizer ---

class OutOfBounds : public testing::Test {
 protected:
  void SetUp() override {
#ifndef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "built without AddressSanitizer";
#endif
  }
};

constexpr char kReport[] = "use-after-poison";

__global__ void PutKernel(float* x, int64_t at) {
  if (GlobalThread() == 0) x[at] = 7;
}
void Put(float* x, int64_t at) { LATHE_LAUNCH(PutKernel, dim3(1), 32, 0, x, at); }

TEST_F(OutOfBounds, BehindAndBeforeTensors) {
  for (const int64_t n : {127, 128, 786432}) {
    SCOPED_TRACE(n);
    const Tensor before = Floats(n), x = Floats(n), behind = Floats(n);
    for (const Tensor& t : {before, x, behind}) {
      float* const data = t.data<float>();
      Put(data, 0);
      Put(data, n - 1);
      EXPECT_DEATH(Put(data, n), kReport);
      EXPECT_DEATH(Put(data, n + 127), kReport);
      EXPECT_DEATH(Put(data, -1), kReport);
      EXPECT_DEATH(Put(data, -128), kReport);
    }
  }
}

TEST_F(OutOfBounds, TensorsOfRecordedWork) {
  DeviceBackend& backend = BackendOf(kDevice);
  for (const int64_t at : {127, 128, -1}) {
    const DeviceMemoryScope scope(backend, backend.NewMemory());
    const std::unique_ptr<RecordedWork> work = backend.Record([&] {
      const Tensor x = Floats(128), y = Floats(128);
      Put(x.data<float>(), at);
      Put(y.data<float>(), at);
    });
    if (at == 127) {
      work->Launch();
    } else {
      EXPECT_DEATH(work->Launch(), kReport);
    }
  }
}

TEST_F(OutOfBounds, FreeTensors) {
  std::optional<Tensor> x = Floats(1000);
  float* const data = x->data<float>();
  x.reset();
  EXPECT_DEATH(Put(data, 500), kReport);
}

TEST_F(OutOfBounds, CopiesByTheRuntime) {
  const Tensor x = Floats(128), y = Floats(128);
  EXPECT_DEATH(BackendOf(kDevice).CopyOnDevice(x.raw_data(), y.raw_data(), 516), kReport);
}

// A smaller one after a larger one lies in the same memory.
TEST_F(OutOfBounds, BehindTheWorkspace) {
  const auto workspace = [](int64_t n) { return static_cast<float*>(Workspace(n * 4)); };
  Put(workspace(1 << 18), (1 << 18) - 1);
  float* const small = workspace(1000);
  Put(small, 999);
  EXPECT_DEATH(Put(small, 1000), kReport);
  EXPECT_DEATH(Put(small, (1 << 18) - 1), kReport);
  EXPECT_DEATH(Put(small, 1 << 18), kReport);
  EXPECT_DEATH(Put(small, -1), kReport);
  Put(workspace(2000), 1999);
  // As large as it was when the work was recorded.
  DeviceBackend& backend = BackendOf(kDevice);
  const auto inside = backend.Record([&] { Put(workspace(3000), 2999); });
  const auto outside = backend.Record([&] { Put(workspace(3000), 3000); });
  workspace(5000);
  inside->Launch();
  EXPECT_DEATH(outside->Launch(), kReport);
}

}  // namespace
}  // namespace lathe::cuda
