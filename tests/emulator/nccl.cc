#include <absl/status/status.h>
#include <nccl.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "lathe/core/base/dtype.h"
#include "lathe/core/base/error.h"
#include "lathe/distributed/groups/nccl/nccl_library.h"
#include "lathe/distributed/rendezvous/socket.h"
#include "lathe/tests/emulator/emulator.h"

using lathe::Socket;

struct ncclComm {
  int size = 0, rank = 0;
  std::atomic<ncclResult_t> state = ncclInProgress;
  std::thread connecting;
  std::mutex mutex;           // guards `aborted`
  std::vector<Socket> peers;  // rank 0: to ranks 1, 2, ...; other ranks: to rank 0
  std::condition_variable changed;
  bool aborted = false;
};

namespace lathe {
namespace {

// Returns a deadline that no test reaches.
Deadline Never() { return std::chrono::steady_clock::now() + std::chrono::minutes(10); }

// A rank's call of a collective. Rank 0 compares the calls; NCCL itself would hang or worse if they
// differ.
struct Call {
  int64_t kind, n, type, op;
  bool operator==(const Call&) const = default;
};
enum { kAllReduce, kAllGather, kBroadcast };

template <typename T>
void Combine(std::byte* to, const std::byte* with, size_t n, ncclRedOp_t op) {
  T* a = reinterpret_cast<T*>(to);
  const T* b = reinterpret_cast<const T*>(with);
  for (size_t i = 0; i < n; ++i) {
    a[i] = op == ncclSum   ? static_cast<T>(a[i] + b[i])
           : op == ncclMax ? (a[i] < b[i] ? b[i] : a[i])
                           : (b[i] < a[i] ? b[i] : a[i]);
  }
}

void CombineOf(ncclDataType_t type, std::byte* to, const std::byte* with, size_t n,
               ncclRedOp_t op) {
  if (type == ncclFloat32) Combine<float>(to, with, n, op);
  if (type == ncclFloat64) Combine<double>(to, with, n, op);
  if (type == ncclInt64) Combine<int64_t>(to, with, n, op);
  if (type == ncclBfloat16) Combine<BFloat16>(to, with, n, op);
}

size_t SizeOfType(ncclDataType_t type) {
  return type == ncclUint8 ? 1 : type == ncclBfloat16 ? 2 : type == ncclFloat32 ? 4 : 8;
}

bool Send(const Socket& to, const std::vector<std::byte>& bytes) {
  return SendAll(to, bytes.data(), bytes.size(), Never());
}
bool Receive(const Socket& from, std::vector<std::byte>& bytes) {
  return ReceiveAll(from, bytes.data(), bytes.size(), Never());
}

// Calls `take` on rank 0 with every rank's `mine`, in the order of ranks. Then sends rank 0's
// `result` to all ranks.
ncclResult_t MeetAtRank0(ncclComm& comm, const Call& call, const std::vector<std::byte>& mine,
                         std::vector<std::byte>& result,
                         const std::function<void(int rank, const std::vector<std::byte>&)>& take) {
  if (comm.rank != 0) {
    const Socket& root = comm.peers[0];
    const bool well =
        SendAll(root, &call, sizeof call, Never()) && Send(root, mine) && Receive(root, result);
    return well ? ncclSuccess : ncclRemoteError;
  }
  take(0, mine);
  std::vector<std::byte> theirs(mine.size());
  for (size_t i = 0; i < comm.peers.size(); ++i) {
    Call other{};
    if (!ReceiveAll(comm.peers[i], &other, sizeof other, Never())) return ncclRemoteError;
    if (other != call) return ncclInvalidUsage;
    if (!Receive(comm.peers[i], theirs)) return ncclRemoteError;
    take(static_cast<int>(i) + 1, theirs);
  }
  for (const Socket& peer : comm.peers) {
    if (!Send(peer, result)) return ncclRemoteError;
  }
  return ncclSuccess;
}

// Queues a collective on the stream. It reads `in` bytes of the device and writes `out` bytes. If
// it fails, it does not end before it is aborted, like a kernel of NCCL's.
ncclResult_t Start(ncclComm_t comm, cudaStream_t stream, const Call& call, const void* from,
                   size_t in, void* to, size_t out,
                   std::function<void(std::vector<std::byte>& result, int rank,
                                      const std::vector<std::byte>& theirs)>
                       take) {
  if (comm->state != ncclSuccess) return comm->state;
  emulator::Enqueue(stream, [=] {
    std::vector<std::byte> mine(in), result(out);
    {
      const emulator::DeviceAccess access;
      std::memcpy(mine.data(), from, in);
    }
    const ncclResult_t state =
        MeetAtRank0(*comm, call, mine, result,
                    [&](int rank, const auto& theirs) { take(result, rank, theirs); });
    if (state == ncclSuccess) {
      const emulator::DeviceAccess access;
      std::memcpy(to, result.data(), out);
      return;
    }
    comm->state = state;
    std::unique_lock lock(comm->mutex);
    comm->changed.wait(lock, [&] { return comm->aborted; });
  });
  return ncclSuccess;
}

void ConnectRanks(ncclComm* comm, Socket listener, int port) try {
  std::vector<Socket> peers(comm->rank == 0 ? static_cast<size_t>(comm->size) - 1 : 1);
  if (comm->rank != 0) {
    peers[0] = Connect("127.0.0.1", port, Never());
    const int32_t rank = comm->rank;
    if (!SendAll(peers[0], &rank, sizeof rank, Never())) throw std::runtime_error("gone");
  }
  for (size_t i = 0; comm->rank == 0 && i < peers.size(); ++i) {
    pollfd waits = {listener.fd(), POLLIN, 0};
    poll(&waits, 1, -1);
    Socket peer(accept(listener.fd(), nullptr, nullptr));
    int32_t rank = 0;
    if (!peer || !ReceiveAll(peer, &rank, sizeof rank, Never())) throw std::runtime_error("gone");
    peers.at(static_cast<size_t>(rank) - 1) = std::move(peer);
  }
  comm->peers = std::move(peers);
  comm->state = ncclSuccess;
} catch (const std::exception&) {
  comm->state = ncclSystemError;
}

Socket& Listener() {
  static Socket listener;
  return listener;
}

}  // namespace

const NcclLibrary& Nccl() {
  if (std::getenv("LATHE_EMULATOR_NO_NCCL") != nullptr) {
    throw Error(absl::StatusCode::kFailedPrecondition, "NCCL can't be used: it is not emulated",
                "unset LATHE_EMULATOR_NO_NCCL");
  }
  static const NcclLibrary table = {ncclGetVersion,   ncclGetErrorString,     ncclGetLastError,
                                    ncclGetUniqueId,  ncclCommInitRankConfig, ncclCommGetAsyncError,
                                    ncclCommFinalize, ncclCommDestroy,        ncclCommAbort,
                                    ncclAllReduce,    ncclAllGather,          ncclBroadcast,
                                    "emulated"};
  return table;
}

}  // namespace lathe

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError    ? "remote process exited or there was a network error"
         : result == ncclInvalidUsage ? "the ranks' calls don't match"
                                      : "internal error";
}
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  lathe::Listener() = lathe::Listen("127.0.0.1", 0);
  const int port = lathe::LocalPort(lathe::Listener());
  std::memcpy(id->internal, &port, sizeof port);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument;
  int port = 0;
  std::memcpy(&port, id.internal, sizeof port);
  *comm = new ncclComm;
  (*comm)->size = size;
  (*comm)->rank = rank;
  Socket listener = rank == 0 ? std::move(lathe::Listener()) : Socket();
  (*comm)->connecting = std::thread(
      [comm = *comm, port](Socket socket) { lathe::ConnectRanks(comm, std::move(socket), port); },
      std::move(listener));
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->state;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) { return comm->state; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  comm->connecting.join();
  delete comm;
  return ncclSuccess;
}

// Keeps `comm` itself, which work may still use.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm->state == ncclInProgress) {
    comm->connecting.detach();
    return ncclSuccess;
  }
  comm->connecting.join();
  for (const Socket& peer : comm->peers) shutdown(peer.fd(), SHUT_RDWR);
  const std::lock_guard lock(comm->mutex);
  comm->aborted = true;
  comm->changed.notify_all();
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t n, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = n * lathe::SizeOfType(type);
  return lathe::Start(comm, stream, {lathe::kAllReduce, static_cast<int64_t>(n), type, op}, from,
                      bytes, to, bytes, [=](auto& result, int rank, const auto& theirs) {
                        if (rank == 0) {
                          result = theirs;
                        } else {
                          lathe::CombineOf(type, result.data(), theirs.data(), n, op);
                        }
                      });
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t n, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = n * lathe::SizeOfType(type);
  return lathe::Start(
      comm, stream, {lathe::kAllGather, static_cast<int64_t>(n), type, 0}, from, bytes, to,
      bytes * static_cast<size_t>(comm->size), [=](auto& result, int rank, const auto& theirs) {
        std::memcpy(result.data() + static_cast<size_t>(rank) * bytes, theirs.data(), bytes);
      });
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t n, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = n * lathe::SizeOfType(type);
  return lathe::Start(comm, stream, {lathe::kBroadcast, static_cast<int64_t>(n), type, root}, from,
                      bytes, to, bytes, [=](auto& result, int rank, const auto& theirs) {
                        if (rank == root) result = theirs;
                      });
}
