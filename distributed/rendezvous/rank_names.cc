#include "lathe/distributed/rendezvous/rank_names.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <numeric>

#include "lathe/core/base/error.h"

namespace lathe {

constexpr char kRank[] = "rank ";

std::string RankName(int rank) { return kRank + std::to_string(rank); }

std::string RankNames(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? kRank : "ranks ") + absl::StrJoin(ranks, ", ");
}

int RankOfName(const std::string& name) {
  int rank = -1;
  const bool is_name =
      name.starts_with(kRank) && absl::SimpleAtoi(name.substr(sizeof kRank - 1), &rank);
  Check(is_name && rank >= 0, "store", '"', name, "\" is not the name of a rank");
  return rank;
}

std::string RankKey(const std::string& what, int rank) { return what + "/" + std::to_string(rank); }

std::vector<std::string> RankKeys(const std::string& what, const std::vector<int>& ranks) {
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(RankKey(what, rank));
  return keys;
}

std::vector<int> RanksBetween(int first, int end) {
  std::vector<int> ranks(static_cast<size_t>(std::max(end - first, 0)));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

std::vector<int> AwaitRanks(Store& store, const std::string& what, const std::vector<int>& ranks,
                            Store::Timeout timeout) {
  std::vector<int> late;
  for (const size_t i : store.Await(RankKeys(what, ranks), timeout)) late.push_back(ranks[i]);
  return late;
}

}  // namespace lathe
