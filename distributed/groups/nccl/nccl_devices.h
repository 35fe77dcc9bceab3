// Describes the GPU that each rank of a job uses, and checks that the GPUs go together. The ranks
// do this before they call NCCL, which would say less or hang.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace lathe {

struct RankDevice {
  std::string host{};     // the rank's host name
  std::string problem{};  // why the rank has no device: "no CUDA device: ..."; "" if it has one
  std::string hint{};     // what the user can do about it
  std::string uuid{};     // identifies the device among all devices in the world
  std::string bus_id{};   // "0000:3b:00.0"
  int visible = 0;        // the number of devices that the rank could choose from
};

// Convert a description to text for other ranks, and back. Parse(Serialize(d)) == d, except that
// line feeds become blanks. Parse throws InvalidArgument.
std::string Serialize(const RankDevice& device);
RankDevice ParseRankDevice(const std::string& text);

// Throws FailedPrecondition, with the same words on every rank, unless each rank has a device of
// its own. devices[i] is that of rank i.
void CheckRankDevices(std::span<const RankDevice> devices);

}  // namespace lathe
