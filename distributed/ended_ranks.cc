#include "lathe/distributed/ended_ranks.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace lathe {

EndedRanks::EndedRanks() : memory_(memfd_create("lathe ended ranks", MFD_CLOEXEC)) {}

void EndedRanks::Add(int rank) {
  const std::string line = std::to_string(rank) + '\n';
  if (memory_ && write(memory_.fd(), line.data(), line.size()) < 0) memory_ = Socket();
}

std::string EndedRanks::Variable(int port) const {
  if (!memory_) return "";
  std::ostringstream text;
  text << port << " /proc/" << getpid() << "/fd/" << memory_.fd();
  return text.str();
}

std::optional<int> FindEndedRank(const ProcessEnvironment& environment) {
  const char* variable = std::getenv(kEndedRanks);
  if (variable == nullptr) return std::nullopt;
  std::istringstream text(variable);
  int port = 0, rank = 0;
  std::string path;
  // Of a job around this one it says nothing here.
  if (!(text >> port >> path) || port != environment.master_port) return std::nullopt;
  std::ifstream file(path);
  if (!(file >> rank) || rank == environment.rank) return std::nullopt;
  return rank;
}

}  // namespace lathe
