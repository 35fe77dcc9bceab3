#include "lathe/distributed/job/shared_error.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "lathe/distributed/job/job.h"

namespace lathe {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

std::string Told(int rank) { return "error/" + std::to_string(rank); }
std::string Read(int rank) { return "error read/" + std::to_string(rank); }

}  // namespace

bool LowerRankTells(const Error& error) {
  bool same = false;
  try {
    const auto group = JoinedGroup();
    if (group == nullptr || group->size() == 1) return false;
    group->Abandon();  // or an answer of rank 0 would be waited for as long as ever
    const Clock::time_point deadline = Clock::now() + Milliseconds(500);
    const auto find = [&](const std::string& key) {
      const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
      return group->Find(key, std::max(left, Milliseconds(0)));
    };
    group->Post(Told(group->rank()), error.message());
    for (int rank = 0; rank < group->rank() && !same; ++rank)
      same = find(Told(rank)) == error.message();
    group->Post(Read(group->rank()), "");
    // The store goes with rank 0, so rank 0 waits until all have read.
    for (int rank = 1; group->rank() == 0 && rank < group->size(); ++rank) find(Read(rank));
    // A launcher blames the rank that ends first. Rank 0 has reported its error, so it should end
    // before this one.
    if (same && group->Find(Told(0), Milliseconds(0)))
      group->Find("rank 0 ends", std::chrono::seconds(2));
  } catch (const Error&) {
    // Rank 0 has ended, maybe because it has seen that this rank has read.
  }
  return same;
}

}  // namespace lathe
