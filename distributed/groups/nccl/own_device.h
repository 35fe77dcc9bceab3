// Finds the GPU of this rank, for nccl_group.cc.
#pragma once

#include "lathe/distributed/groups/nccl/nccl_devices.h"

namespace lathe {

struct OwnDevice {
  RankDevice description{};
  int number = 0;  // CUDA's, among the devices that this process sees
};

// Makes the device with the number `local_rank`, modulo the number of devices, the current one. If
// there is none, or no NCCL, the description's `problem` says so.
OwnDevice DescribeOwnDevice(int local_rank);

}  // namespace lathe
