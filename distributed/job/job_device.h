// Which device each process of a job computes on, and how the devices talk to each other.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lathe/core/dtype.h"
#include "lathe/distributed/groups/nccl/nccl_group.h"
#include "lathe/distributed/job/job.h"

namespace lathe {

struct JobDevice {
  Device device = {};
  std::shared_ptr<NcclGroup> group = nullptr;  // null: the host computes, or there is one process
  std::string note = "";                       // why GPUs that are there stay unused; "" if none do
};

// The device that `wish` names, which all processes have to agree on: "cpu", "cuda" (each process
// has a GPU of its own, the one that its local rank numbers), "auto": "cuda" if that is so, else
// "cpu". In a job of one process as ChooseDevice. A collective; throws on all processes, with the
// same words, for other wishes and for GPUs that can't be had.
JobDevice ChooseJobDevice(const Job& job, const std::string& wish,
                          std::chrono::milliseconds timeout);

}  // namespace lathe
