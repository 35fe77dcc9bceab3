#include "lathe/distributed/liveness/who_reports.h"

#include <absl/strings/str_cat.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>
#include <utility>

#include "lathe/distributed/rendezvous/rank_names.h"

namespace lathe {
namespace {

constexpr std::chrono::milliseconds kPause(20), kMoment(500);
constexpr int kLargestOwnCode = 127;  // above it: killed by a signal

// Returns the first of the ranks of this machine that has ended as `wanted` says. Waits for the
// launcher to record it, for `time` at most.
std::optional<EndedRank> AwaitEnd(const ProcessEnvironment& environment,
                                  std::chrono::milliseconds time,
                                  const std::function<bool(const EndedRank&)>& wanted) {
  for (auto waited = kPause * 0; waited < time; waited += kPause) {
    const auto ended = FindEndedRanks(environment);
    if (!ended) break;
    const auto found = std::ranges::find_if(*ended, wanted);
    if (found != ended->end()) return *found;
    std::this_thread::sleep_for(kPause);
  }
  return std::nullopt;
}

// Returns true if that rank of this machine has failed with an error of its own, rather than been
// killed. Waits for that for `time` at most. False if no launcher keeps a record.
bool HasReported(const ProcessEnvironment& environment, int rank, std::chrono::milliseconds time) {
  const auto end =
      AwaitEnd(environment, time, [&](const EndedRank& ended) { return ended.rank == rank; });
  return end && end->exit_code > 0 && end->exit_code <= kLargestOwnCode;
}

// Called when this rank ends because another rank hangs, and `ranks` of this machine should end for
// the same reason. Returns true if none of them does so by itself within 3 s: they hang as well,
// unless they need longer to end. Returns false if no launcher keeps a record.
bool AllHang(const ProcessEnvironment& environment, const std::vector<int>& ranks) {
  return FindEndedRanks(environment) &&
         !AwaitEnd(environment, 6 * kMoment, [&](const EndedRank& ended) {
           return std::ranges::count(ranks, ended.rank) > 0 && ended.exit_code <= kLargestOwnCode;
         });
}

struct NotedRanks {
  std::vector<int> ranks;
  pid_t process = 0;  // the process that noted them; this one may be a fork of it
};
NotedRanks& Noted() {
  static NotedRanks noted;
  return noted;
}

// Returns the ranks of this machine that are lower than this one and not among those that are gone.
std::vector<int> LowerRanksLeft(const ProcessEnvironment& environment,
                                const std::vector<int>& gone) {
  std::vector<int> left = LocalRanks();
  std::erase_if(left, [&](int rank) {
    return rank >= environment.rank || std::ranges::count(gone, rank) > 0;
  });
  return left;
}

}  // namespace

EndedRanksRecord::EndedRanksRecord() : memory_(memfd_create("lathe ended ranks", MFD_CLOEXEC)) {}

void EndedRanksRecord::Add(int rank, int exit_code) {
  const std::string line = absl::StrCat(rank, " ", exit_code, "\n");
  if (memory_ && write(memory_.fd(), line.data(), line.size()) < 0) memory_ = Socket();
}

std::string EndedRanksRecord::Variable(int port) const {
  return memory_ ? absl::StrCat(port, " /proc/", getpid(), "/fd/", memory_.fd()) : "";
}

std::optional<std::vector<EndedRank>> FindEndedRanks(const ProcessEnvironment& environment) {
  std::istringstream text(OwnVariable(kEndedRanksVariable).value_or(""));
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

void SetLocalRanks(std::vector<int> ranks) { Noted() = {std::move(ranks), getpid()}; }

std::vector<int> LocalRanks() {
  if (Noted().process == getpid()) return Noted().ranks;
  const ProcessEnvironment environment = ReadProcessEnvironment();
  const int first = environment.rank - environment.local_rank;
  return RanksBetween(first, first + environment.local_world_size);
}

bool ShouldReportLostRanks(const LostRanks& lost, const ProcessEnvironment& environment) {
  const std::vector<int> local_ranks = LocalRanks();
  const std::vector<int> before = LowerRanksLeft(environment, lost.ranks);  // they may hang, too
  if (!before.empty() && !(lost.hangs() && AllHang(environment, before))) return false;
  const bool all_here = std::ranges::all_of(
      lost.ranks, [&](int other) { return std::ranges::count(local_ranks, other) > 0; });
  return lost.hangs() || !all_here || lost.hint_was_extended ||
         !std::ranges::all_of(lost.ranks,
                              [&](int other) { return HasReported(environment, other, kMoment); });
}

bool ShouldSaveForMain(const Error& error, const ProcessEnvironment& environment) {
  const LostRanks* lost = FindLostRanks(error);
  std::vector<int> gone = lost == nullptr ? std::vector<int>{} : lost->ranks;
  gone.push_back(0);
  std::vector<int> before;  // the ranks that should save rather than this one
  for (int look = 0; look < 10; ++look) {
    const auto known = FindEndedRanks(environment);
    for (const EndedRank& ended : known.value_or(std::vector<EndedRank>())) {
      const bool saved = ended.exit_code == kLostRankExitCode && ended.rank < environment.rank;
      if (saved) return false;
      gone.push_back(ended.rank);
    }
    before = LowerRanksLeft(environment, gone);
    // The main process may have saved and ended just now. The launcher then records it in a moment.
    const bool main_may_have_saved =
        known && lost != nullptr && !lost->Includes(0) && std::ranges::count(LocalRanks(), 0) > 0 &&
        std::ranges::none_of(*known, [](const EndedRank& ended) { return ended.rank == 0; });
    if (before.empty() && !main_may_have_saved) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  return before.empty() || (lost != nullptr && lost->hangs() && AllHang(environment, before));
}

bool IsReportedByLocalMain(const ProcessEnvironment& environment, bool without_record) {
  if (environment.local_rank == 0) return false;
  if (!FindEndedRanks(environment)) return without_record;
  // Only `lathe launch` keeps a record, and it numbers the ranks of a machine consecutively.
  return HasReported(environment, environment.rank - environment.local_rank, 3 * kMoment);
}

}  // namespace lathe
