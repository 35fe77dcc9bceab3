#include "lathe/distributed/rendezvous/rank_names.h"

#include <charconv>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

constexpr char kRank[] = "rank ";

}  // namespace

std::string RankName(int rank) { return kRank + std::to_string(rank); }

std::string RankNames(const std::vector<int>& ranks) {
  std::string names = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) names += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return names;
}

int RankOfName(const std::string& name) {
  int rank = -1;
  if (name.starts_with(kRank)) {
    const char* end = name.data() + name.size();
    const auto [stop, code] = std::from_chars(name.data() + sizeof kRank - 1, end, rank);
    if (code != std::errc{} || stop != end) rank = -1;
  }
  Check(rank >= 0, "store", '"', name, "\" is not the name of a rank");
  return rank;
}

std::string RankKey(const std::string& what, int rank) { return what + "/" + std::to_string(rank); }

}  // namespace lathe
