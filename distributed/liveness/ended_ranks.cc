#include "lathe/distributed/liveness/ended_ranks.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace lathe {

EndedRanks::EndedRanks() : memory_(memfd_create("lathe ended ranks", MFD_CLOEXEC)) {}

void EndedRanks::Add(int rank, int exit_code) {
  const std::string line = std::to_string(rank) + ' ' + std::to_string(exit_code) + '\n';
  if (memory_ && write(memory_.fd(), line.data(), line.size()) < 0) memory_ = Socket();
}

std::string EndedRanks::Variable(int port) const {
  if (!memory_) return "";
  std::ostringstream text;
  text << port << " /proc/" << getpid() << "/fd/" << memory_.fd();
  return text.str();
}

namespace {

// Opens the launcher's record. nullopt if there is none, or if it belongs to a job around this one,
// which meets at another port.
std::optional<std::ifstream> FileOfEndedRanks(const ProcessEnvironment& environment) {
  const char* variable = std::getenv(kEndedRanks);
  if (variable == nullptr) return std::nullopt;
  std::istringstream text(variable);
  int port = 0;
  std::string path;
  if (!(text >> port >> path) || port != environment.master_port) return std::nullopt;
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return file;
}

}  // namespace

std::vector<EndedRank> FindEndedRanks(const ProcessEnvironment& environment) {
  std::vector<EndedRank> ranks;
  std::optional<std::ifstream> file = FileOfEndedRanks(environment);
  if (!file) return ranks;
  for (EndedRank ended{}; *file >> ended.rank >> ended.exit_code;) ranks.push_back(ended);
  return ranks;
}

namespace {

constexpr std::chrono::milliseconds kPause(20), kMoment(500);
constexpr int kLargestOwnCode = 127;  // above it: killed by a signal

// Returns the rank's exit code once it has ended; nullopt if it has not within `time`.
std::optional<int> AwaitEnd(const ProcessEnvironment& environment, int rank,
                            std::chrono::milliseconds time) {
  for (auto waited = kPause * 0; waited < time; waited += kPause) {
    for (const EndedRank& ended : FindEndedRanks(environment)) {
      if (ended.rank == rank) return ended.exit_code;
    }
    std::this_thread::sleep_for(kPause);
  }
  return std::nullopt;
}

bool LauncherTells(const ProcessEnvironment& environment) {
  return FileOfEndedRanks(environment).has_value();
}

bool Fails(const ProcessEnvironment& environment, int rank, std::chrono::milliseconds time) {
  if (!LauncherTells(environment)) return false;
  const int code = AwaitEnd(environment, rank, time).value_or(0);
  return code > 0 && code <= kLargestOwnCode;
}

}  // namespace

bool HasTold(const ProcessEnvironment& environment, int rank) {
  return Fails(environment, rank, kMoment);
}

bool LocalMainHasTold(const ProcessEnvironment& environment) {
  return environment.local_rank > 0 &&
         Fails(environment, environment.rank - environment.local_rank, 3 * kMoment);
}

bool StayAfterAHang(const ProcessEnvironment& environment, const std::vector<int>& ranks) {
  if (!LauncherTells(environment)) return false;
  for (auto waited = kPause * 0; waited < 6 * kMoment; waited += kPause) {
    for (const EndedRank& ended : FindEndedRanks(environment)) {
      if (std::ranges::count(ranks, ended.rank) > 0 && ended.exit_code <= kLargestOwnCode)
        return false;
    }
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

std::optional<int> FindEndedRank(const ProcessEnvironment& environment) {
  const std::vector<EndedRank> ranks = FindEndedRanks(environment);
  return ranks.empty() ? std::nullopt : std::optional(ranks[0].rank);
}

}  // namespace lathe
