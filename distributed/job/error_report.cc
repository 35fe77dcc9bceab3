#include "lathe/distributed/job/error_report.h"

#include <chrono>
#include <string>

#include "lathe/distributed/job/job.h"
#include "lathe/distributed/liveness/lost_ranks.h"
#include "lathe/distributed/liveness/who_reports.h"
#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/distributed/rendezvous/rank_names.h"
#include "lathe/distributed/rendezvous/wait_time.h"

namespace lathe {
namespace {

using Milliseconds = std::chrono::milliseconds;

// Messages that a rank posts: its error's message, and that it has read the others'.
constexpr char kError[] = "error", kErrorRead[] = "error read";

// Returns true if a lower rank of the joined group reports the same error. Two messages are the
// same if users would read the same line twice; nothing is read out of them.
bool IsReportedByLowerRank(const Error& error) {
  bool same = false;
  try {
    const auto group = JoinedGroup();
    if (group->size() == 1) return false;
    group->Abandon();  // limits the wait for each answer of rank 0
    const auto deadline = std::chrono::steady_clock::now() + Milliseconds(500);
    const auto find = [&](const char* key, int rank) {
      return group->FindMessage(RankKey(key, rank), TimeLeft(deadline));
    };
    group->PostMessage(RankKey(kError, group->rank()), error.message());
    for (int rank = 0; rank < group->rank() && !same; ++rank)
      same = find(kError, rank) == error.message();
    group->PostMessage(RankKey(kErrorRead, group->rank()), "");
    // The store goes with rank 0, so rank 0 waits until all have read.
    for (int rank = 1; group->rank() == 0 && rank < group->size(); ++rank) find(kErrorRead, rank);
    // Rank 0 has reported its error and should end first: a launcher blames the rank that does.
    if (same && group->FindMessage(RankKey(kError, 0), Milliseconds(0)))
      group->FindMessage("rank 0 ends", std::chrono::seconds(2));
  } catch (const Error&) {
    // Rank 0 has ended, maybe because it has seen that this rank has read.
  }
  return same;
}

}  // namespace

bool ShouldReport(const Error& error, ErrorSource source) {
  const ProcessEnvironment environment = ReadProcessEnvironment();
  if (const LostRanks* lost = FindLostRanks(error))
    return ShouldReportLostRanks(*lost, environment);
  if (JoinedGroup() != nullptr) return !IsReportedByLowerRank(error);
  return !IsReportedByLocalMain(environment, source == ErrorSource::kCommandLine);
}

}  // namespace lathe
