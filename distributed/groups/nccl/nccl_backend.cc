// The part of NCCL's groups that is in every program, whether it links the groups or not.
#include <absl/status/status.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "lathe/core/base/error.h"
#include "lathe/distributed/groups/nccl/nccl_group.h"

namespace lathe {
namespace {

const NcclBackend* linked_backend = nullptr;  // set before main

}  // namespace

std::string Serialize(const RankDevice& device) {
  std::string text;
  for (const std::string& line : {device.host, device.problem, device.hint, device.uuid,
                                  device.bus_id, std::to_string(device.visible)})
    text += absl::StrReplaceAll(line, {{"\n", " "}}) + '\n';
  return text;
}

RankDevice ParseRankDevice(const std::string& text) {
  RankDevice device;
  std::istringstream in(text);
  std::string visible;
  for (std::string* line :
       {&device.host, &device.problem, &device.hint, &device.uuid, &device.bus_id, &visible}) {
    Check(!std::getline(in, *line).fail(), "nccl",
          "a rank's description of its device can't be read: \"", text, '"');
  }
  Check(absl::SimpleAtoi(visible, &device.visible), "nccl", "a rank says that it sees \"", visible,
        "\" devices, which is not a number");
  return device;
}

void CheckRankDevices(std::span<const RankDevice> devices) {
  // Often all ranks lack the same thing.
  const bool all_alike = std::all_of(devices.begin(), devices.end(), [&](const RankDevice& device) {
    return device.problem == devices[0].problem && device.host == devices[0].host;
  });
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    const RankDevice& device = devices[rank];
    if (device.problem.empty()) continue;
    throw Error(
        absl::StatusCode::kFailedPrecondition,
        (all_alike ? "" : absl::StrCat("rank ", rank, " (", device.host, "): ")) + device.problem,
        device.hint);
  }
  std::map<std::string, size_t> user_of;
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    const RankDevice& device = devices[rank];
    const auto [user, is_first] = user_of.emplace(device.uuid, rank);
    if (is_first) continue;
    const std::string host = devices[user->second].host == device.host
                                 ? device.host
                                 : devices[user->second].host + " (also named " + device.host + ")";
    throw Error(absl::StatusCode::kFailedPrecondition,
                absl::StrCat("ranks ", user->second, " and ", rank, " would share the GPU ",
                             device.bus_id, " of ", host, "; rank ", rank, " sees ", device.visible,
                             device.visible == 1 ? " GPU" : " GPUs"),
                "NCCL needs a GPU for each process: start no more processes on a machine than it "
                "has GPUs, or compute on the CPU (device cpu, backend gloo)");
  }
}

bool RegisterNcclBackend(const NcclBackend& backend) {
  linked_backend = &backend;
  return true;
}

const NcclBackend& RequireNccl() {
  if (linked_backend != nullptr) return *linked_backend;
  throw Error(absl::StatusCode::kFailedPrecondition,
              "[nccl] this program was built without CUDA and NCCL",
              "install both, set CUDA_PATH to CUDA's folder and build again, or compute on the CPU "
              "(device cpu, backend gloo)");
}

RankDevice DescribeRankDevice(int local_rank) try {
  return RequireNccl().describe(local_rank);
} catch (const Error& e) {
  return {.problem = e.message(), .hint = e.hint()};
}

}  // namespace lathe
