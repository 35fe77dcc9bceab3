// Tests the checks of the emulated device. They find accesses outside of a tensor, copies that come
// too early or too late, and shared memory that is read before it is written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lathe/core/cuda/async_copy.h"
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
    const DeviceMemoryPoolScope scope(backend, backend.NewMemoryPool());
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

// A smaller workspace after a larger one lies in the same memory.
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
  // Recorded work has a workspace as large as it was when the work was recorded.
  DeviceBackend& backend = BackendOf(kDevice);
  const auto inside = backend.Record([&] { Put(workspace(3000), 2999); });
  const auto outside = backend.Record([&] { Put(workspace(3000), 3000); });
  workspace(5000);
  inside->Launch();
  EXPECT_DEATH(outside->Launch(), kReport);
}

// --- what depends on the order ---

// Sets LATHE_EMULATOR_ORDER for its lifetime.
class WithOrder {
 public:
  explicit WithOrder(const char* order) {
    if (const char* now = std::getenv(kName)) before_ = now;
    setenv(kName, order, 1);
  }
  ~WithOrder() { before_ ? setenv(kName, before_->c_str(), 1) : unsetenv(kName); }
  WithOrder(const WithOrder&) = delete;
  WithOrder& operator=(const WithOrder&) = delete;

 private:
  static constexpr char kName[] = "LATHE_EMULATOR_ORDER";
  std::optional<std::string> before_;
};

// out[i] is what thread i sees of its own copy before it waits for it. out[threads + i] is what it
// sees afterwards.
__global__ void LookBeforeWaiting(float* out, const float* from) {
  float* const to = DynamicShared<float>() + 4 * threadIdx.x;
  to[0] = -1;
  CopyAsync(to, from, true);
  CommitCopies();
  out[threadIdx.x] = to[0];
  WaitForCopies<0>();
  out[blockDim.x + threadIdx.x] = to[0];
}

TEST(Copies, ArriveEarlyOrLate) {
  constexpr int kThreads = 256;
  const Tensor from = Tensor::Full({4}, 5, DType::kF32, kDevice), out = Floats(2 * kThreads);
  const auto early = [&](const char* order) {
    const WithOrder with(order);
    LATHE_LAUNCH(LookBeforeWaiting, dim3(1), kThreads, kThreads * 16, out.data<float>(),
                 from.data<float>());
    const std::vector<float> seen = out.ToVector<float>();
    EXPECT_EQ(std::count(seen.begin() + kThreads, seen.end(), 5.0f), kThreads);
    return std::count(seen.begin(), seen.begin() + kThreads, 5.0f);
  };
  EXPECT_EQ(early("forward"), 0);
  EXPECT_EQ(early("reverse"), kThreads);
  EXPECT_NEAR(static_cast<double>(early("7")), kThreads / 2, kThreads / 4);
}

// Sums tiles with a double buffer. Without `kBarrier` no barrier follows the work on a tile. Then
// the first warp that is done copies the next tile but one over data that others still read.
template <bool kBarrier>
__global__ void SumTiles(float* out, const float* tiles, int count) {
  constexpr int kWarps = 4;
  float* const stages = DynamicShared<float>();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto load = [&](int tile) {
    CopyAsync(stages + tile % 2 * 512 + 4 * threadIdx.x, tiles + tile * 512 + 4 * threadIdx.x,
              true);
  };
  float sum = 0;
  load(0);
  CommitCopies();
  for (int t = 0; t < count; ++t) {
    if (kBarrier) __syncthreads();
    if (t + 1 < count) load(t + 1);
    CommitCopies();
    WaitForCopies<1>();
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) {
      sum += __shfl_xor_sync(~0u, stages[t % 2 * 512 + w * 128 + (lane + warp) % 128], 1);
    }
  }
  out[threadIdx.x] = sum;
}

TEST(Copies, OverWhatOthersReadAreSeen) {
  std::vector<float> values(4 * 512);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * i % 97);
  const Tensor tiles = Tensor::FromVector(values).To(kDevice), out = Floats(128);
  const auto sums = [&](bool barrier, const char* order) {
    const WithOrder with(order);
    const dim3 grid(1);
    if (barrier) {
      LATHE_LAUNCH(SumTiles<true>, grid, 128, 4096, out.data<float>(), tiles.data<float>(), 4);
    } else {
      LATHE_LAUNCH(SumTiles<false>, grid, 128, 4096, out.data<float>(), tiles.data<float>(), 4);
    }
    return out.ToVector<float>();
  };
  const std::vector<float> expected = sums(true, "forward");
  EXPECT_EQ(sums(true, "reverse"), expected);
  EXPECT_EQ(sums(true, "7"), expected);
  EXPECT_NE(sums(false, "reverse"), expected);
}

// --- shared memory ---

// Static shared memory of a class, which the linker may find in several files. LookBeforeWriting
// adds some of a function in an unnamed namespace.
struct Group {
  static __device__ float* Scratch() {
    __shared__ float scratch[32];
    return scratch;
  }
};
template <typename T>
__global__ void LookBeforeWriting(float* out) {
  __shared__ T mine[2][32];
  float* const dynamic = DynamicShared<float>();
  const unsigned at = 3 * GlobalThread();
  const unsigned i = threadIdx.x;
  out[at] = static_cast<float>(mine[1][i]);
  out[at + 1] = Group::Scratch()[i];
  out[at + 2] = dynamic[i];
  mine[1][i] = 1;
  Group::Scratch()[i] = dynamic[i] = 1;
}

TEST(SharedMemory, OfABlockIsNotTheLastOnes) {
  const Tensor out = Floats(3 * 2 * 32);
  for (int launch = 0; launch < 2; ++launch) {
    LATHE_LAUNCH(LookBeforeWriting<float>, dim3(2), 32, 128, out.data<float>());
    for (const float v : out.ToVector<float>()) ASSERT_TRUE(std::isnan(v));
    LATHE_LAUNCH(LookBeforeWriting<double>, dim3(2), 32, 128, out.data<float>());
    for (const float v : out.ToVector<float>()) ASSERT_TRUE(std::isnan(v));
  }
}

TEST(SharedMemory, OfABlockIsLimited) {
  constexpr size_t kMost = 227 << 10;
  const Tensor out = Floats(3 * 2 * 32);
  const auto launch = [&](size_t bytes) {
    LATHE_LAUNCH(LookBeforeWriting<float>, dim3(2), 32, bytes, out.data<float>());
  };
  EXPECT_EQ(SharedMemoryPerBlock(), kMost);
  launch(kMost);
  try {
    launch(kMost + 1);
    ADD_FAILURE() << "more than there is";
  } catch (const Error& e) {
    EXPECT_EQ(e.message(),
              "[cuda] LookBeforeWriting<float> needs 232449 bytes of shared memory for a block, "
              "but this GPU has 232448");
  }
  // RunKernel enforces the limit, too.
  EXPECT_DEATH(emulator::RunKernel("kernel", nullptr, dim3(1), 32, kMost + 1, nullptr, nullptr),
               "kernel: 232449 bytes of shared memory, but the device has 232448");
  EXPECT_DEATH((setenv("LATHE_EMULATOR_SHARED_KIB", "99", 1), launch(100 << 10)),
               "102400 bytes of shared memory, but the device has 101376");
}

}  // namespace
}  // namespace lathe::cuda
