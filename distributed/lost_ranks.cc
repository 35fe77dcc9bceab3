#include "lathe/distributed/lost_ranks.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

namespace lathe {
namespace {

constexpr std::string_view kRank = "rank ";

// The number at the start of `text`, which is cut off; -1: there is none.
int TakeNumber(std::string_view& text) {
  int number = -1;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, number);
  if (code != std::errc{}) return -1;
  text.remove_prefix(static_cast<size_t>(stop - text.data()));
  return number;
}

}  // namespace

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
  // "rank 0: no memory" is that rank's own fault.
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

bool TellsOfLostRanks(const Error& error, const ProcessEnvironment& environment) {
  const LostRanks lost = FindLostRanks(error);
  const auto is_lost = [&](int rank) {
    return std::find(lost.ranks.begin(), lost.ranks.end(), rank) != lost.ranks.end();
  };
  const int first = environment.rank - environment.local_rank;
  for (int rank = first; rank < environment.rank; ++rank) {
    if (!is_lost(rank)) return false;
  }
  const bool all_here = std::all_of(lost.ranks.begin(), lost.ranks.end(), [&](int rank) {
    return rank >= first && rank < first + environment.local_world_size;
  });
  return lost.hang || !all_here || error.hint() != kLostRankHint;
}

}  // namespace lathe
