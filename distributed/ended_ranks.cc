#include "lathe/distributed/ended_ranks.h"

#include <sys/mman.h>
#include <unistd.h>

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

std::vector<EndedRank> FindEndedRanks(const ProcessEnvironment& environment) {
  std::vector<EndedRank> ranks;
  const char* variable = std::getenv(kEndedRanks);
  if (variable == nullptr) return ranks;
  std::istringstream text(variable);
  int port = 0;
  std::string path;
  // Of a job around this one it says nothing here.
  if (!(text >> port >> path) || port != environment.master_port) return ranks;
  std::ifstream file(path);
  for (EndedRank ended{}; file >> ended.rank >> ended.exit_code;) ranks.push_back(ended);
  return ranks;
}

bool HasTold(const ProcessEnvironment& environment, int rank) {
  constexpr int kLargestOwnCode = 127;
  for (int look = 0; look < 25 && std::getenv(kEndedRanks) != nullptr; ++look) {
    for (const EndedRank& ended : FindEndedRanks(environment)) {
      if (ended.rank == rank) return ended.exit_code > 0 && ended.exit_code <= kLargestOwnCode;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

std::optional<int> FindEndedRank(const ProcessEnvironment& environment) {
  const std::vector<EndedRank> ranks = FindEndedRanks(environment);
  return ranks.empty() ? std::nullopt : std::optional(ranks[0].rank);
}

}  // namespace lathe
