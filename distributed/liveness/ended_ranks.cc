#include "lathe/distributed/liveness/ended_ranks.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace lathe {

EndedRanksRecord::EndedRanksRecord() : memory_(memfd_create("lathe ended ranks", MFD_CLOEXEC)) {}

void EndedRanksRecord::Add(int rank, int exit_code) {
  const std::string line = std::to_string(rank) + ' ' + std::to_string(exit_code) + '\n';
  if (memory_ && write(memory_.fd(), line.data(), line.size()) < 0) memory_ = Socket();
}

std::string EndedRanksRecord::Variable(int port) const {
  if (!memory_) return "";
  std::ostringstream text;
  text << port << " /proc/" << getpid() << "/fd/" << memory_.fd();
  return text.str();
}

std::optional<std::vector<EndedRank>> FindEndedRanks(const ProcessEnvironment& environment) {
  const char* variable = std::getenv(kEndedRanksVariable);
  if (variable == nullptr) return std::nullopt;
  std::istringstream text(variable);
  int port = 0;
  std::string path;
  if (!(text >> port >> path) || port != environment.master_port) return std::nullopt;
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::vector<EndedRank> ranks;
  for (EndedRank ended{}; file >> ended.rank >> ended.exit_code;) ranks.push_back(ended);
  return ranks;
}

std::optional<int> FindFirstEndedRank(const ProcessEnvironment& environment) {
  const auto ranks = FindEndedRanks(environment);
  return !ranks || ranks->empty() ? std::nullopt : std::optional(ranks->front().rank);
}

}  // namespace lathe
