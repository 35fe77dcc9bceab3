#include "lathe/distributed/rendezvous/rank_names.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

constexpr char kRank[] = "rank ";

}  // namespace

std::string RankName(int rank) { return kRank + std::to_string(rank); }

std::string RankNames(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + absl::StrJoin(ranks, ", ");
}

int RankOfName(const std::string& name) {
  int rank = -1;
  const bool is_name =
      name.starts_with(kRank) && absl::SimpleAtoi(name.substr(sizeof kRank - 1), &rank);
  Check(is_name && rank >= 0, "store", '"', name, "\" is not the name of a rank");
  return rank;
}

std::string RankKey(const std::string& what, int rank) { return what + "/" + std::to_string(rank); }

}  // namespace lathe
