#include "lathe/distributed/liveness/lost_ranks.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "lathe/distributed/liveness/ended_ranks.h"

namespace lathe {
namespace {

constexpr std::string_view kRank = "rank ";

// Cuts the number off the start of `text` and returns it; -1 if there is none.
int TakeNumber(std::string_view& text) {
  int number = -1;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, number);
  if (code != std::errc{}) return -1;
  text.remove_prefix(static_cast<size_t>(stop - text.data()));
  return number;
}

}  // namespace

std::string NamesOf(const std::vector<int>& ranks) {
  std::string names = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) names += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return names;
}

LostRanks FindLostRanks(const Error& error) {
  LostRanks lost;
  if (error.code() != absl::StatusCode::kUnavailable) return lost;
  std::string_view text = error.message();
  const size_t tag = text.find("] rank ");
  if (!text.starts_with('[') || tag == std::string_view::npos) return lost;
  text.remove_prefix(tag + 2 + kRank.size());
  const int self = TakeNumber(text);
  constexpr std::string_view kStops = " can't go on: ";
  if (self < 0 || !text.starts_with(kStops)) return lost;
  text.remove_prefix(kStops.size());
  // A problem that begins with "rank 0: ", such as "rank 0: no memory", is that rank's own fault.
  bool first = true;
  for (size_t at = text.find(kRank); at != std::string_view::npos; at = text.find(kRank)) {
    text.remove_prefix(at + kRank.size());
    const int rank = TakeNumber(text);
    const bool hangs = text.starts_with(" does not answer");
    const bool blamed =
        hangs || text.starts_with(" has ended") || (first && at == 0 && text.starts_with(": "));
    first = false;
    if (rank < 0 || !blamed) continue;
    if (rank == self) return {};
    lost.ranks.push_back(rank);
    lost.hang = lost.hang || hangs;
  }
  return lost;
}

namespace {

struct NotedRanks {
  std::vector<int> ranks;
  pid_t process = 0;  // the process that noted them; this one may be a fork of it
};
NotedRanks& Noted() {
  static NotedRanks noted;
  return noted;
}

}  // namespace

void NoteLocalRanks(std::vector<int> ranks) { Noted() = {std::move(ranks), getpid()}; }

std::vector<int> LocalRanks() {
  if (Noted().process == getpid()) return Noted().ranks;
  const ProcessEnvironment environment = ReadProcessEnvironment();
  std::vector<int> ranks(static_cast<size_t>(environment.local_world_size));
  std::iota(ranks.begin(), ranks.end(), environment.rank - environment.local_rank);
  return ranks;
}

bool TellsOfLostRanks(const Error& error, const ProcessEnvironment& environment) {
  const LostRanks lost = FindLostRanks(error);
  const std::vector<int> local_ranks = LocalRanks();
  std::vector<int> before;  // lower ranks here that are left, unless they hang, too
  for (const int other : local_ranks) {
    if (other < environment.rank && std::ranges::count(lost.ranks, other) == 0)
      before.push_back(other);
  }
  if (!before.empty() && !(lost.hang && StayAfterAHang(environment, before))) return false;
  const bool all_here = std::ranges::all_of(
      lost.ranks, [&](int other) { return std::ranges::count(local_ranks, other) > 0; });
  const bool says_more = error.hint() != kLostRankHint && error.hint() != kLostWhileJoiningHint;
  return lost.hang || !all_here || says_more ||
         !std::ranges::all_of(lost.ranks, [&](int other) { return HasTold(environment, other); });
}

}  // namespace lathe
