#include "lathe/distributed/groups/nccl/own_device.h"

#include <absl/status/status.h>
#include <absl/strings/escaping.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdlib>
#include <iterator>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/distributed/groups/nccl/nccl_library.h"
#include "lathe/distributed/rendezvous/machine.h"

namespace lathe {
namespace {

Error NoDevice(const std::string& why) {
  return Error(absl::StatusCode::kFailedPrecondition, "no CUDA device: " + why,
               "see what nvidia-smi shows and what CUDA_VISIBLE_DEVICES is set to, or compute on "
               "the CPU (device cpu, backend gloo)");
}

// Makes the rank's device the current one and fills in its description. Returns its number.
int ChooseDevice(int local_rank, RankDevice& described) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
    throw NoDevice("no NVIDIA driver is installed");
  }
  cudaError_t result = cudaGetDeviceCount(&described.visible);
  if (result != cudaSuccess) throw NoDevice(cudaGetErrorString(result));
  if (described.visible == 0) throw NoDevice("the driver shows none");
  const int device = local_rank % described.visible;
  cudaDeviceProp properties;
  std::array<char, 32> bus_id{};
  result = cudaSetDevice(device);
  if (result == cudaSuccess) result = cudaGetDeviceProperties(&properties, device);
  if (result == cudaSuccess) result = cudaDeviceGetPCIBusId(bus_id.data(), bus_id.size(), device);
  if (result != cudaSuccess) {
    throw NoDevice("number " + std::to_string(device) + ": " + cudaGetErrorString(result));
  }
  described.bus_id = bus_id.data();
  described.uuid =
      absl::BytesToHexString({properties.uuid.bytes, std::size(properties.uuid.bytes)});
  return device;
}

}  // namespace

OwnDevice DescribeOwnDevice(int local_rank) {
  OwnDevice own = {.description = {.host = HostName()}};
  try {
    if (std::getenv("NCCL_COMM_ID") != nullptr) {
      throw Error(
          absl::StatusCode::kFailedPrecondition,
          "NCCL_COMM_ID is set: the ranks of NCCL would meet at that address, where another "
          "job may be",
          "unset NCCL_COMM_ID: ranks meet at MASTER_ADDR and MASTER_PORT");
    }
    own.number = ChooseDevice(local_rank, own.description);
    Nccl();
  } catch (const Error& e) {
    own.description.problem = e.message();
    own.description.hint = e.hint();
  }
  return own;
}

}  // namespace lathe
