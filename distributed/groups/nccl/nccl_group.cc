#include "lathe/distributed/groups/nccl/nccl_group.h"

#include <absl/status/status.h>
#include <absl/strings/escaping.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <future>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/distributed/groups/nccl/cuda_handles.h"
#include "lathe/distributed/groups/nccl/nccl_library.h"
#include "lathe/distributed/liveness/peer_watch.h"
#include "lathe/distributed/rendezvous/machine.h"

namespace lathe {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

template <typename T>
constexpr ncclDataType_t kNcclType = std::is_same_v<T, float>     ? ncclFloat32
                                     : std::is_same_v<T, double>  ? ncclFloat64
                                     : std::is_same_v<T, int64_t> ? ncclInt64
                                                                  : ncclBfloat16;

ncclRedOp_t NcclOp(ReduceOp op) {
  return op == ReduceOp::kSum ? ncclSum : op == ReduceOp::kMax ? ncclMax : ncclMin;
}

// Returns CUDA's number of the rank's device, among the devices that this process sees.
int NumberOfDevice(int local_rank, const RankDevice& described) {
  return local_rank % std::max(described.visible, 1);
}

[[noreturn]] void ThrowNoDevice(const std::string& why) {
  throw Error(absl::StatusCode::kFailedPrecondition, "no CUDA device: " + why,
              "see what nvidia-smi shows and what CUDA_VISIBLE_DEVICES is set to, or compute on "
              "the CPU (device cpu, backend gloo)");
}

// Makes the rank's device the current one and fills in its description.
void ChooseDevice(int local_rank, RankDevice& described) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
    ThrowNoDevice("no NVIDIA driver is installed");
  cudaError_t result = cudaGetDeviceCount(&described.visible);
  if (result != cudaSuccess) ThrowNoDevice(cudaGetErrorString(result));
  if (described.visible == 0) ThrowNoDevice("the driver shows none");
  const int device = NumberOfDevice(local_rank, described);
  cudaDeviceProp properties;
  std::array<char, 32> bus_id{};
  result = cudaSetDevice(device);
  if (result == cudaSuccess) result = cudaGetDeviceProperties(&properties, device);
  if (result == cudaSuccess) result = cudaDeviceGetPCIBusId(bus_id.data(), bus_id.size(), device);
  if (result != cudaSuccess)
    ThrowNoDevice("number " + std::to_string(device) + ": " + cudaGetErrorString(result));
  described.bus_id = bus_id.data();
  described.uuid =
      absl::BytesToHexString({properties.uuid.bytes, std::size(properties.uuid.bytes)});
}

// Makes the described device the current one.
RankDevice Describe(int local_rank) {
  RankDevice own = {.host = HostName()};
  try {
    if (std::getenv("NCCL_COMM_ID") != nullptr) {
      throw Error(
          absl::StatusCode::kFailedPrecondition,
          "NCCL_COMM_ID is set: the ranks of NCCL would meet at that address, where another "
          "job may be",
          "unset NCCL_COMM_ID: ranks meet at MASTER_ADDR and MASTER_PORT");
    }
    ChooseDevice(local_rank, own);
    Nccl();
  } catch (const Error& e) {
    own.problem = e.message();
    own.hint = e.hint();
  }
  return own;
}

// The group's resources on its device.
struct DeviceSide {
  static constexpr size_t kStagingBytes = size_t{8} << 20;
  CudaStream stream = MakeCudaStream();
  CudaEvent event = MakeCudaEvent();
  CudaEvent order = MakeCudaEvent();  // orders the work of two streams
  DeviceMemory device = MakeDeviceMemory(kStagingBytes);
  // Copies between the device and pinned memory don't block. Other copies from a device that waits
  // for a lost rank would block for ever.
  PinnedMemory host = MakePinnedMemory(kStagingBytes);
};

class RealNcclGroup : public NcclGroup {
 public:
  RealNcclGroup(int rank, int size, int local_rank, std::shared_ptr<StoreServer> server,
                std::shared_ptr<Store> store, Milliseconds timeout)
      : NcclGroup(rank, size),
        timeout_(timeout),
        watch_(rank, size, std::move(server), std::move(store)) {
    // The store is asked while collectives wait, so it must not make them wait for much longer.
    watch_.store().SetPatience(
        std::clamp<Milliseconds>(timeout, Milliseconds(500), std::chrono::seconds(30)));
    watch_.SetGoodbyePatience(timeout);
    const RankDevice own = Describe(local_rank);
    device_ = NumberOfDevice(local_rank, own);
    std::vector<RankDevice> devices;
    watch_.Run("connecting", [&] {
      for (const std::string& text : watch_.Exchange("nccl_device", Serialize(own), timeout_))
        devices.push_back(ParseRankDevice(text));
    });
    try {
      CheckRankDevices(devices);
    } catch (const Error&) {
      watch_.LeaveTogether();
      throw;
    }
    Run("connecting", [this] { Connect(); });
  }

  ~RealNcclGroup() override {
    // A rank that ends because of an error leaves other ranks behind, so it aborts.
    if (std::uncaught_exceptions() > 0 || !Finalize()) Abort();
  }

  int device() const override { return device_; }

  void WatchPeersWith(std::weak_ptr<ProcessGroup> group) override {
    watch_.SetExtraCheck([group = std::move(group)] {
      if (const auto present = group.lock()) present->CheckPeers();
    });
  }

  void AllReduce(std::span<float> data, ReduceOp op) override { AllReduceOf(data, op); }
  void AllReduce(std::span<double> data, ReduceOp op) override { AllReduceOf(data, op); }
  void AllReduce(std::span<int64_t> data, ReduceOp op) override { AllReduceOf(data, op); }

  void AllGather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const size_t n = static_cast<size_t>(size());
    CheckGatherSizes(mine, all);
    if (mine.empty()) return;
    Run("all_gather", [&] {
      const size_t most = DeviceSide::kStagingBytes / n;
      for (size_t at = 0; at < mine.size(); at += most) {
        const size_t bytes = std::min(most, mine.size() - at);
        // A rank's own part lies at its place in the result.
        std::byte* const own = side_->device.get() + bytes * static_cast<size_t>(rank());
        std::memcpy(side_->host.get(), mine.data() + at, bytes);
        Copy(own, side_->host.get(), bytes);
        Settle("ncclAllGather", Nccl().AllGather(own, side_->device.get(), bytes, ncclUint8, comm_,
                                                 side_->stream.get()));
        Copy(side_->host.get(), side_->device.get(), bytes * n);
        AwaitStream(stream());
        for (size_t r = 0; r < n; ++r)
          std::memcpy(all.data() + r * mine.size() + at, side_->host.get() + r * bytes, bytes);
      }
    });
  }

  void Broadcast(std::span<std::byte> data, int root) override {
    CheckRoot(root);
    InStages("broadcast", data.data(), data.size(), [&](std::byte* device, size_t bytes) {
      Settle("ncclBroadcast",
             Nccl().Broadcast(device, device, bytes, ncclUint8, root, comm_, side_->stream.get()));
    });
  }

  void Barrier() override {
    int64_t nothing = 0;
    AllReduceOf(std::span(&nothing, 1), ReduceOp::kSum, "barrier");
  }

  void Abandon() override { watch_.Abandon(); }
  void SetPhase(const std::string& phase) override { watch_.SetPhase(phase); }
  void PostMessage(const std::string& key, const std::string& value) override {
    watch_.PostMessage(key, value);
  }
  std::string AwaitMessage(const std::string& key, int from) override {
    return watch_.AwaitMessage(key, from);
  }
  std::optional<std::string> FindMessage(const std::string& key,
                                         std::chrono::milliseconds time) override {
    return watch_.FindMessage(key, time);
  }

  void AllReduceDevice(float* data, size_t n, ReduceOp op, void* stream) override {
    AllReduceDeviceOf(data, n, op, stream);
  }
  void AllReduceDevice(BFloat16* data, size_t n, ReduceOp op, void* stream) override {
    AllReduceDeviceOf(data, n, op, stream);
  }
  void* stream() const override { return side_->stream.get(); }
  void Order(void* earlier, void* later) override {
    Run("all_reduce", [&] {
      Record(side_->order, earlier);
      CheckCuda("cudaStreamWaitEvent",
                cudaStreamWaitEvent(static_cast<cudaStream_t>(later), side_->order.get(), 0));
    });
  }
  void WaitFor(void* stream) override {
    Run("all_reduce", [&] { AwaitStream(stream); });
  }
  void Stop() override {
    watch_.Abandon();
    Abort();
  }

 private:
  // Connects the ranks without blocking, as others may never come.
  void Connect() {
    side_ = std::make_unique<DeviceSide>();
    ncclUniqueId id{};
    if (rank() == 0) Settle("ncclGetUniqueId", Nccl().GetUniqueId(&id));
    // Exchange gives rank 0's id to all ranks; the others have nothing to say.
    const std::string id_of_rank_0 = watch_.Exchange(
        "nccl_id", rank() == 0 ? std::string(id.internal, sizeof id.internal) : "", timeout_)[0];
    if (id_of_rank_0.size() != sizeof id.internal) throw OwnFault("rank 0 sent no id for NCCL");
    std::memcpy(id.internal, id_of_rank_0.data(), sizeof id.internal);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    Settle("ncclCommInitRank", Nccl().CommInitRankConfig(&comm_, size(), id, rank(), &config));
  }

  // Runs `body` on the group's device. If anything goes wrong, the ranks agree on what it was
  // before this rank lets go of the others.
  void Run(const char* what, const std::function<void()>& body) {
    try {
      watch_.Run(what, [&] {
        CheckCuda("cudaSetDevice", cudaSetDevice(device_));
        body();
      });
    } catch (...) {
      Abort();
      throw;
    }
  }

  // Copies the data to the device in stages, calls `enqueue(device, bytes)` for each stage, and
  // copies the results back.
  void InStages(const char* what, std::byte* data, size_t size,
                const std::function<void(std::byte*, size_t)>& enqueue) {
    if (size == 0) return;
    Run(what, [&] {
      for (size_t at = 0; at < size; at += DeviceSide::kStagingBytes) {
        const size_t bytes = std::min(DeviceSide::kStagingBytes, size - at);
        std::memcpy(side_->host.get(), data + at, bytes);
        Copy(side_->device.get(), side_->host.get(), bytes);
        enqueue(side_->device.get(), bytes);
        Copy(side_->host.get(), side_->device.get(), bytes);
        AwaitStream(stream());
        std::memcpy(data + at, side_->host.get(), bytes);
      }
    });
  }

  template <typename T>
  void AllReduceOf(std::span<T> data, ReduceOp op, const char* what = "all_reduce") {
    InStages(what, reinterpret_cast<std::byte*>(data.data()), data.size_bytes(),
             [&](std::byte* device, size_t bytes) {
               EnqueueAllReduce(reinterpret_cast<T*>(device), bytes / sizeof(T), op, stream());
             });
  }

  template <typename T>
  void AllReduceDeviceOf(T* data, size_t n, ReduceOp op, void* stream) {
    if (n == 0) return;
    Run("all_reduce", [&] { EnqueueAllReduce(data, n, op, stream); });
  }

  template <typename T>
  void EnqueueAllReduce(T* data, size_t n, ReduceOp op, void* stream) {
    Settle("ncclAllReduce", Nccl().AllReduce(data, data, n, kNcclType<T>, NcclOp(op), comm_,
                                             static_cast<cudaStream_t>(stream)));
  }

  void Record(const CudaEvent& event, void* stream) {
    CheckCuda("cudaEventRecord", cudaEventRecord(event.get(), static_cast<cudaStream_t>(stream)));
  }

  void Copy(void* to, const void* from, size_t bytes) {
    CheckCuda("cudaMemcpyAsync",
              cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, side_->stream.get()));
  }

  // Waits for a call on a communicator that doesn't block: it may not be done when it returns.
  void Settle(const char* call, ncclResult_t result) {
    watch_.PollUntil(timeout_, [&] {
      if (result == ncclInProgress) result = AsyncError();
      return result != ncclInProgress;
    });
    if (result != ncclSuccess) ThrowFailure(call, result);
  }

  void AwaitStream(void* stream) {
    Record(side_->event, stream);
    watch_.PollUntil(timeout_, [this] {
      const cudaError_t state = cudaEventQuery(side_->event.get());
      if (state == cudaSuccess) return true;
      if (state != cudaErrorNotReady) CheckCuda("the device", state);
      cudaGetLastError();  // or the next kernel launch would report the polls' error as its own
      const ncclResult_t result = AsyncError();
      if (result != ncclSuccess && result != ncclInProgress) ThrowFailure("NCCL", result);
      return false;
    });
  }

  ncclResult_t AsyncError() const {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = Nccl().CommGetAsyncError(comm_, &state);
    return asked == ncclSuccess ? state : asked;
  }

  [[noreturn]] void ThrowFailure(const char* call, ncclResult_t result) const {
    std::string text = std::string(call) + ": " + Nccl().GetErrorString(result);
    const char* const more = Nccl().GetLastError(comm_);
    if (more != nullptr && *more != '\0') text += std::string(": ") + more;
    // A connection fails at both ends, and the cause may be at the other one.
    if (result == ncclRemoteError || result == ncclSystemError) throw std::runtime_error(text);
    throw OwnFault(text);
  }

  // Ends a group in which all went well. Returns false if it has to be aborted after all.
  bool Finalize() {
    if (comm_ == nullptr) return true;
    cudaSetDevice(device_);
    const Clock::time_point deadline =
        Clock::now() + std::min<Milliseconds>(timeout_, std::chrono::seconds(5));
    ncclResult_t result = Nccl().CommFinalize(comm_);
    while (result == ncclInProgress && Clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      result = AsyncError();
    }
    if (result != ncclSuccess) return false;
    Nccl().CommDestroy(std::exchange(comm_, nullptr));
    return true;
  }

  // Stops what NCCL does on the device, on a thread of its own: NCCL may hang in it, and the error
  // must get out.
  void Abort() {
    const std::lock_guard lock(abort_mutex_);
    if (comm_ == nullptr) return;
    auto aborted = std::make_shared<std::promise<void>>();
    const std::future<void> end = aborted->get_future();
    std::thread([aborted, device = device_, comm = std::exchange(comm_, nullptr)] {
      cudaSetDevice(device);
      Nccl().CommAbort(comm);
      aborted->set_value();
    }).detach();
    // Freeing memory that a hanging device uses would hang, too, so it stays until the process
    // ends.
    if (end.wait_for(std::chrono::seconds(10)) != std::future_status::ready) side_.release();
  }

  const Milliseconds timeout_;
  PeerWatch watch_;
  int device_ = 0;
  std::unique_ptr<DeviceSide> side_;
  std::mutex abort_mutex_;
  ncclComm_t comm_ = nullptr;  // null before Connect and after Abort
};

std::shared_ptr<NcclGroup> Make(int rank, int size, int local_rank,
                                std::shared_ptr<StoreServer> server, std::shared_ptr<Store> store,
                                Milliseconds timeout) {
  Check(local_rank >= 0, "nccl", "the local rank must be at least 0 but is ", local_rank);
  return std::make_shared<RealNcclGroup>(rank, size, local_rank, std::move(server),
                                         std::move(store), timeout);
}

const NcclBackend backend = {Describe, Make};
[[maybe_unused]] const bool registered = RegisterNcclBackend(backend);

}  // namespace
}  // namespace lathe
