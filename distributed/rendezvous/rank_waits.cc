#include "lathe/distributed/rendezvous/rank_waits.h"

#include <algorithm>
#include <numeric>

#include "lathe/distributed/rendezvous/rank_names.h"

namespace lathe {
namespace {

std::vector<std::string> KeysOf(const std::string& what, const std::vector<int>& ranks) {
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(RankKey(what, rank));
  return keys;
}

}  // namespace

std::vector<int> RanksBetween(int first, int end) {
  std::vector<int> ranks(static_cast<size_t>(std::max(end - first, 0)));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

std::vector<int> AwaitRanks(Store& store, const std::string& what, const std::vector<int>& ranks,
                            Store::Timeout timeout) {
  // The missing keys come in the order of the ranks.
  const std::vector<std::string> missing = store.Await(KeysOf(what, ranks), timeout);
  auto next = missing.begin();
  std::vector<int> late;
  for (const int rank : ranks) {
    if (next == missing.end() || *next != RankKey(what, rank)) continue;
    late.push_back(rank);
    ++next;
  }
  return late;
}

std::vector<std::optional<std::string>> GetFromRanks(Store& store, const std::string& what,
                                                     const std::vector<int>& ranks,
                                                     Store::Timeout timeout) {
  return store.GetSeveral(KeysOf(what, ranks), timeout);
}

}  // namespace lathe
