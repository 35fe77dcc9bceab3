// Which GPU each rank of a job uses, and whether they go together: known before NCCL is asked,
// which would say less or hang.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace lathe {

struct RankDevice {
  std::string host{};     // of this rank
  std::string problem{};  // why it has no device: "no CUDA device: ..."; "" if it has one
  std::string hint{};     // what to do about it
  std::string uuid{};     // tells all devices in the world apart
  std::string bus_id{};   // "0000:3b:00.0"
  int visible = 0;        // how many devices the rank could choose from
};

// To send it to other ranks. Parse(Serialize(d)) == d but for line feeds, which become blanks.
// Parse throws InvalidArgument.
std::string Serialize(const RankDevice& device);
RankDevice ParseRankDevice(const std::string& text);

// Throws FailedPrecondition, with the same words on every rank, unless each has a device of its
// own. `devices`: those of ranks 0, 1, ...
void CheckRankDevices(std::span<const RankDevice> devices);

}  // namespace lathe
