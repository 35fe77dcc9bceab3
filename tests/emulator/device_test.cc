// Tests of the backend's memory, copies and recorded work, on the emulated device.
#include "lathe/core/cuda/runtime/device.h"

#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/broadcast.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/tensor.h"
#include "lathe/tests/emulator/emulator.h"

namespace lathe {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
const Device kGpu = {DeviceType::kCUDA, 0};

// Returns a tensor that takes `mib` MiB of the device's memory.
Tensor OfMiB(int64_t mib) {
  return Tensor::Empty({mib * kMiB - emulator::kGuardBytes}, DType::kU8, kGpu);
}

TEST(DeviceMemory, IsCountedAndReused) {
  const int64_t before = TensorMemory(kGpu).now;
  ResetPeakMemory(kGpu);
  const void* first = nullptr;
  {
    const Tensor a = OfMiB(3), b = OfMiB(5);
    first = a.raw_data();
    EXPECT_EQ(TensorMemory(kGpu).now, before + 8 * kMiB);
  }
  EXPECT_EQ(TensorMemory(kGpu).now, before);
  EXPECT_EQ(TensorMemory(kGpu).peak, before + 8 * kMiB);
  const int64_t reserved = cuda::DevicePool().Statistics().reserved;
  EXPECT_EQ(OfMiB(8).raw_data(), first) << "neighbours become one block";
  EXPECT_EQ(cuda::DevicePool().Statistics().reserved, reserved);
}

TEST(DeviceMemory, RunsOutWithAnErrorAndGoesOn) {
  cuda::DevicePool().ReleaseFreeSegments();
  const int64_t reserved = cuda::DevicePool().Statistics().reserved;
  emulator::SetMemorySize(reserved + 100 * kMiB);
  OfMiB(60);  // its memory stays reserved until there is no room
  const int64_t retries = cuda::DevicePool().Statistics().retries;
  const Tensor kept = OfMiB(80);
  EXPECT_EQ(cuda::DevicePool().Statistics().retries, retries + 1);
  try {
    const AllocationTag allocation_tag = AllocationTag::Buffer("the test");
    OfMiB(30);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_NE(e.message().find("[cuda] out of memory: the test asked for 30.0 MiB; "),
              std::string::npos)
        << e.message();
    EXPECT_NE(e.message().find(", 20.0 MiB of the device's "), std::string::npos) << e.message();
  }
  EXPECT_TRUE(OfMiB(10).defined());
  emulator::SetMemorySize(int64_t{16} << 30);
}

TEST(DeviceMemory, WorkspaceIsEachThreadsOwn) {
  char* const mine = static_cast<char*>(cuda::Workspace(1000));
  EXPECT_EQ(cuda::Workspace(10), mine);
  void* other = nullptr;
  std::thread([&] { other = cuda::Workspace(1000); }).join();
  EXPECT_NE(other, mine);
  const void* larger = cuda::Workspace(3 * kMiB);
  EXPECT_NE(larger, mine);
  EXPECT_NE(Tensor::Empty({1000}, DType::kU8, kGpu).raw_data(), mine) << "it stays reserved";
}

TEST(DeviceMemory, WorkspaceOutlivesItsThreadInWhatWasRecorded) {
  DeviceBackend& backend = BackendOf(kGpu);
  const Tensor source = Tensor::Full({1000}, 7, DType::kU8, kGpu);
  char* workspace = nullptr;
  std::unique_ptr<RecordedWork> work;
  std::thread([&] {
    work = backend.Record([&] {
      workspace = static_cast<char*>(cuda::Workspace(1000));
      backend.CopyOnDevice(workspace, source.raw_data(), 1000);
    });
  }).join();
  std::vector<Tensor> others;  // tensors that would fit into the workspace's place
  for (int i = 0; i < 100; ++i) {
    others.push_back(Tensor::Full({1000}, i, DType::kU8, kGpu));
    EXPECT_NE(others.back().raw_data(), workspace);
  }
  work->Launch();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(others[i].ToVector<uint8_t>(), std::vector<uint8_t>(1000, static_cast<uint8_t>(i)));
  }
  std::vector<uint8_t> bytes(1000);
  backend.CopyToHost(bytes.data(), workspace, 1000);
  EXPECT_EQ(bytes, std::vector<uint8_t>(1000, 7));
  others.clear();
  work.reset();
  bool free_again = false;
  for (int i = 0; i < 100; ++i) {
    others.push_back(Tensor::Empty({1000}, DType::kU8, kGpu));
    free_again |= others.back().raw_data() == workspace;
  }
  EXPECT_TRUE(free_again);
}

TEST(DeviceCopies, KeepTheirBytes) {
  DeviceBackend& backend = BackendOf(kGpu);
  for (const int64_t n :
       {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{65537}, 9 * kMiB + 3, 20 * kMiB + 1}) {
    SCOPED_TRACE(n);
    std::vector<uint8_t> bytes(static_cast<size_t>(n)), back(bytes.size(), 0xee);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7 + (i >> 9));
    const std::vector<uint8_t> expected = bytes;
    const Tensor on_device = Tensor::Empty({n + 1}, DType::kU8, kGpu);
    char* const at = static_cast<char*>(on_device.raw_data()) + 1;
    backend.CopyToDevice(at, bytes.data(), n);
    std::fill(bytes.begin(), bytes.end(), uint8_t{0});
    backend.CopyToHost(back.data(), at, n);
    EXPECT_TRUE(back == expected);
  }
}

TEST(DeviceCopies, ComeFromAnyThread) {
  cuda::DevicePool().ReleaseFreeSegments();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 20; ++i) {
        std::vector<int32_t> values(static_cast<size_t>(1 + (i * 977 + t) % 5000));
        std::iota(values.begin(), values.end(), t * 1000 + i);
        const Tensor x = Tensor::FromVector(values).To(kGpu);
        EXPECT_EQ(x.To(Device{}).ToVector<int32_t>(), values);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Each step reads its own copy, however late either stream is. Copies that are too large for a
// staging slot go another way and are tested, too.
TEST(DeviceCopies, AheadOfTheWorkReachItsStep) {
  DeviceBackend& backend = BackendOf(kGpu);
  const auto late = [](int microseconds) {
    return [=] { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); };
  };
  const Tensor input = Tensor::Empty({kMiB}, DType::kI32, kGpu);
  std::vector<Tensor> read;
  for (int32_t step = 0; step < 60; ++step) {
    if (step % 3 != 0) emulator::Enqueue(cuda::Stream(), late(300 * (step % 4)));
    if (step % 5 != 0) emulator::Enqueue(cuda::CopyStream(), late(200 * (step % 7)));
    const int64_t n = step % 10 == 9 ? kMiB : 1 + step * 97;
    std::vector<int32_t> values(static_cast<size_t>(n), step);
    backend.PrefetchToDevice(input.raw_data(), values.data(), n * 4);
    std::fill(values.begin(), values.end(), -1);
    read.push_back(Tensor::Empty({n}, DType::kI32, kGpu));
    backend.CopyOnDevice(read.back().raw_data(), input.raw_data(), n * 4);
  }
  for (int32_t step = 0; step < 60; ++step) {
    const std::vector<int32_t> values = read[static_cast<size_t>(step)].ToVector<int32_t>();
    EXPECT_EQ(std::count(values.begin(), values.end(), step), std::ssize(values)) << step;
  }
  EXPECT_THROW(backend.Record([&] {
    const int32_t value = 1;
    backend.PrefetchToDevice(input.raw_data(), &value, 4);
  }),
               Error);
}

TEST(RecordedWork, IsDoneWhenItIsLaunchedWithTheValuesOfThen) {
  DeviceBackend& backend = BackendOf(kGpu);
  Tensor x = Tensor::Full({5}, 1.0, DType::kF32, kGpu);
  const Tensor y = Tensor::Zeros({5}, DType::kF32, kGpu);
  const std::shared_ptr<DeviceMemoryPool> memory = backend.NewMemoryPool();
  std::unique_ptr<RecordedWork> work;
  {
    const DeviceMemoryPoolScope scope(backend, memory);
    work = backend.Record([&] {
      Tensor twice = x.Clone();
      AddInPlace(twice, x);
      Tensor(y).CopyFrom(twice);
    });
  }
  EXPECT_EQ(y.ToVector<float>(), std::vector<float>(5, 0));
  for (const float value : {3.0f, 4.0f}) {
    x.Fill(value);
    work->Launch();
    EXPECT_EQ(y.ToVector<float>(), std::vector<float>(5, 2 * value));
    // The work's temporary memory is not that of other tensors.
    const Tensor other = Tensor::Full({5}, 7.0, DType::kF32, kGpu);
    work->Launch();
    EXPECT_EQ(other.ToVector<float>(), std::vector<float>(5, 7));
  }
}

TEST(RecordedWork, CannotTakeValuesFromTheHost) {
  DeviceBackend& backend = BackendOf(kGpu);
  const Tensor x = Tensor::Full({5}, 1.0, DType::kF32, kGpu);
  const Tensor host = Tensor::Zeros({5});
  for (const auto& work : std::vector<std::function<void()>>{
           [&] { host.To(kGpu); }, [&] { x.To(Device{}); }, [&] { backend.Record([] {}); },
           [] { throw InvalidArgument("own"); }}) {
    EXPECT_THROW(backend.Record(work), Error);
    EXPECT_FALSE(cuda::IsCapturing());
  }
  EXPECT_EQ(x.ToVector<float>(), std::vector<float>(5, 1));  // the failures left nothing behind
}

TEST(RecordedWork, TakesNoMemoryThatAllShare) {
  DeviceBackend& backend = BackendOf(kGpu);
  const auto memory = backend.NewMemoryPool();
  Tensor kept = Tensor::Zeros({5}, DType::kF32, kGpu);
  EXPECT_EQ(backend.MemoryPoolOf(*kept.impl()->storage), nullptr);
  const auto beside = [](const Tensor& leaf) {
    const LeafMemoryScope scope(*leaf.impl());
    return leaf.Clone();
  };
  {
    const DeviceMemoryPoolScope scope(backend, memory);
    const Tensor own = kept.Clone();
    EXPECT_EQ(backend.MemoryPoolOf(*own.impl()->storage), memory);
    EXPECT_EQ(backend.MemoryPoolOf(*beside(own).impl()->storage), memory);
    EXPECT_EQ(backend.MemoryPoolOf(*beside(kept).impl()->storage), nullptr);
    EXPECT_NE(backend.Record([&] { beside(own); }), nullptr);
    EXPECT_THROW(backend.Record([&] { beside(kept); }), Error);
  }
  EXPECT_THROW(backend.Record([&] { beside(kept); }), Error);
  EXPECT_EQ(beside(kept).ToVector<float>(), std::vector<float>(5, 0));
}

// Recorded work still uses the memory that it took, even if no tensor holds it any more.
TEST(RecordedWork, KeepsItsMemoryWhereItIsShort) {
  DeviceBackend& backend = BackendOf(kGpu);
  cuda::DevicePool().ReleaseFreeSegments();
  const auto memory = backend.NewMemoryPool();
  const Tensor kept = Tensor::Zeros({5}, DType::kF32, kGpu);
  std::unique_ptr<RecordedWork> work;
  {
    const DeviceMemoryPoolScope scope(backend, memory);
    work = backend.Record([&] { OfMiB(40).Fill(7); });
  }
  emulator::SetMemorySize(cuda::DevicePool().Statistics().reserved + 70 * kMiB);
  {
    const DeviceMemoryPoolScope scope(backend, memory);
    EXPECT_THROW(OfMiB(50), Error);
    // While work is recorded, the pool can't give memory back, so this fails, too.
    EXPECT_THROW(backend.Record([] { OfMiB(50); }), Error);
  }
  Tensor other = OfMiB(20);
  other.Fill(1);
  work->Launch();
  const std::vector<uint8_t> values = other.ToVector<uint8_t>();
  EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](uint8_t v) { return v == 1; }));
  try {
    OfMiB(60);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(e.message().find(", 40.0 MiB are reserved for CUDA graphs"), std::string::npos)
        << e.message();
    EXPECT_NE(e.hint().find("no CUDA graphs"), std::string::npos);
  }
  work.reset();
  memory->Trim();
  EXPECT_TRUE(OfMiB(40).defined());
  emulator::SetMemorySize(int64_t{16} << 30);
}

TEST(RecordedWork, ErrorsLeaveNothingBehind) {
  DeviceBackend& backend = BackendOf(kGpu);
  emulator::FailNextInstantiate();
  EXPECT_THROW(backend.Record([] {}), Error);
  // A forbidden call spoils the recording, even if its caller ignores the error.
  EXPECT_THROW(
      backend.Record([] { cudaDeviceSynchronize(), cudaStreamSynchronize(cuda::Stream()); }),
      Error);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(Tensor::Full({3}, 2.0, DType::kF32, kGpu).ToVector<float>(), std::vector<float>(3, 2));
}

TEST(DeviceMemory, OfOnePurposeIsApartAndGoesWithItsLastTensor) {
  DeviceBackend& backend = BackendOf(kGpu);
  cuda::DevicePool().ReleaseFreeSegments();
  const int64_t before = TensorMemory(kGpu).now;
  Tensor kept;
  {
    const auto memory = backend.NewMemoryPool();
    const DeviceMemoryPoolScope scope(backend, memory);
    kept = OfMiB(30);
    EXPECT_EQ(TensorMemory(kGpu).now, before + 30 * kMiB);
  }
  EXPECT_EQ(TensorMemory(kGpu).now, before + 30 * kMiB);
  kept = Tensor();
  EXPECT_EQ(TensorMemory(kGpu).now, before);
  // The common pool gives back free memory if another pool needs it.
  OfMiB(60);
  emulator::SetMemorySize(cuda::DevicePool().Statistics().reserved + 20 * kMiB);
  const DeviceMemoryPoolScope scope(backend, backend.NewMemoryPool());
  EXPECT_TRUE(OfMiB(50).defined());
  emulator::SetMemorySize(int64_t{16} << 30);
}

}  // namespace
}  // namespace lathe
