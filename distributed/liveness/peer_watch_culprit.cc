// The part of the watch that finds the rank that is to blame, and agrees on it with the others.
#include <absl/status/status.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <mutex>
#include <string>
#include <vector>

#include "lathe/distributed/liveness/peer_watch.h"
#include "lathe/distributed/rendezvous/rank_names.h"
#include "lathe/distributed/rendezvous/rank_waits.h"

namespace lathe {
namespace {

using Milliseconds = std::chrono::milliseconds;

}  // namespace

// Returns the problem that all ranks agree on: the first one that a rank recorded in the store.
// `noticed` is what this rank saw. A rank that leaves because another is lost does not count as
// lost itself.
GroupProblem PeerWatch::AgreeOnProblem(const char* what, const GroupProblem& noticed) {
  const bool own_fault = noticed.IsFaultOf(rank_);
  store_->SetPatience(kMoment);
  auto agreed = store_->Get(kProblem, Milliseconds(0));
  if (!agreed && !own_fault && store_->Get(kTrouble, Milliseconds(0))) {
    // Another rank looks for the culprit already.
    store_->Set(RankKey(kWaitsIn, rank_), what);
    agreed = store_->Get(kProblem, TimeToAnswer() + kMoment);
  }
  if (!agreed) {
    const std::string found = Serialize(own_fault ? noticed : FindCulprit(what, noticed));
    if (store_->Add("problems", 1) == 1) store_->Set(kProblem, found);
    store_->Set(kTrouble, "");
    agreed = store_->Get(kProblem, kMoment);
    if (!agreed) agreed = found;
  }
  GroupProblem problem = ParseGroupProblem(*agreed);
  LeaveTogether(problem);
  return problem;
}

// Finds the rank that is to blame. The store knows ranks that died. A rank hangs if it doesn't say
// that it waits, too. Returns `noticed` if no rank is to blame.
GroupProblem PeerWatch::FindCulprit(const char* what, const GroupProblem& noticed) {
  if (const auto ended = FindEndedPeer(kMoment)) return EndedRankProblem(*ended, PhaseOf(*ended));
  if (const auto silent = store_->Get(Heartbeat::kSilent, Milliseconds(0)))
    return ParseGroupProblem(*silent);
  store_->Set(RankKey(kWaitsIn, rank_), what);
  store_->Set(kTrouble, "");
  const std::vector<int> ranks = RanksBetween(0, size_);
  const auto calls = GetFromRanks(*store_, kWaitsIn, ranks, TimeToAnswer());
  std::vector<int> silent;
  std::string busy;
  bool same = true;
  for (const int other : ranks) {
    const auto& call = calls[static_cast<size_t>(other)];
    if (!call) {
      silent.push_back(other);
      continue;
    }
    busy += (busy.empty() ? "" : ", ") + RankName(other) + " is in " + *call;
    same = same && *call == what;
  }
  if (const auto ended = FindEndedPeer()) return EndedRankProblem(*ended, PhaseOf(*ended));
  if (!silent.empty()) return HangingRanks(silent);
  if (!same) return {.text = "the ranks' calls don't match: " + busy};
  return noticed;
}

// Names what each of the ranks was doing, or once for all what they all were doing.
GroupProblem PeerWatch::HangingRanks(const std::vector<int>& ranks) {
  std::vector<std::string> phases;
  for (const auto& phase : GetFromRanks(*store_, kPhase, ranks, Milliseconds(0)))
    phases.push_back(phase.value_or(""));
  GroupProblem all = HangingRankProblem(ranks[0], phases[0]);
  all.lost->ranks = ranks;
  if (std::ranges::count(phases, phases[0]) < std::ssize(phases)) {
    for (size_t i = 1; i < ranks.size(); ++i)
      all.text += ", " + HangingRankProblem(ranks[i], phases[i]).text;
  } else if (ranks.size() > 1) {
    all.text = RankNames(ranks) + " do not answer";
    if (!phases[0].empty()) all.text += " while " + phases[0];
  }
  return all;
}

// The thread of a rank that waits answers for it, in one of its rounds (Heartbeat).
Milliseconds PeerWatch::TimeToAnswer() const {
  return std::max(2 * kMoment, Milliseconds(2 * size_));
}

// Rank 0 served the store, so the phase of rank 0 is gone with it. The message names this rank's
// phase, which is that of all ranks.
GroupProblem PeerWatch::ProblemOfStore(const Error& e) const {
  const std::lock_guard lock(phase_mutex_);
  const GroupProblem lost = FindLostRank();
  const bool hangs = e.code() == absl::StatusCode::kDeadlineExceeded ||
                     (lost.lost && lost.lost->hangs() && lost.lost->ranks.front() == 0);
  GroupProblem problem = hangs ? HangingRankProblem(0, "") : EndedRankProblem(0, "");
  if (!phase_.empty()) problem.text += "; this rank was " + phase_;
  return problem;
}

// Returns "training", as that rank has said; "" if it has said nothing.
std::string PeerWatch::PhaseOf(int rank) {
  return store_->Get(RankKey(kPhase, rank), Milliseconds(0)).value_or("");
}

}  // namespace lathe
