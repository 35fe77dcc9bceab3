// The choice of a device for each rank of a job, and the connection between the devices.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lathe/core/base/dtype.h"
#include "lathe/distributed/groups/nccl/nccl_group.h"
#include "lathe/distributed/job/job.h"

namespace lathe {

struct JobDevice {
  Device device = {};
  std::shared_ptr<NcclGroup> group = nullptr;  // null: on the host, or with one rank
  std::string note = "";  // why existing GPUs stay unused; "" if there is nothing to say
};

// Chooses the device that `wish` names; all ranks must pass the same wish. "cpu": the host.
// "cuda": each rank has a GPU of its own, the one with the number of its local rank
// (DescribeRankDevice). "auto": as "cuda" if each rank can have its own GPU, else "cpu". In a
// job of one rank it does what ChooseDevice does.
// A collective. Throws on all ranks, with the same words, if the wish is another one or the
// GPUs can't be had.
JobDevice ChooseJobDevice(const Job& job, const std::string& wish,
                          std::chrono::milliseconds timeout);

}  // namespace lathe
