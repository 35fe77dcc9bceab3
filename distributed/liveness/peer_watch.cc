#include "lathe/distributed/liveness/peer_watch.h"

#include <absl/cleanup/cleanup.h>
#include <absl/status/status.h>

#include <algorithm>
#include <exception>
#include <iostream>
#include <iterator>
#include <thread>
#include <utility>

#include "lathe/distributed/rendezvous/rank_names.h"
#include "lathe/distributed/rendezvous/store_protocol.h"
#include "lathe/distributed/rendezvous/wait_time.h"

namespace lathe {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Keys that a rank sets when its work is done, and when it gives up together with others.
constexpr char kBye[] = "bye", kGivesUp[] = "knows";

// Returns what an exception inside of Run means, if it turns out that no other rank is to blame.
GroupProblem ConnectionFailed(const std::exception& e) {
  GroupProblem problem = {.text = "the connection to another rank failed: "};
  problem.text += e.what();
  if (const auto* error = dynamic_cast<const Error*>(&e)) {
    if (const LostRanks* lost = FindLostRanks(*error)) problem.lost = *lost;
    // Rank 0 serves the store.
    if (error->code() == absl::StatusCode::kDeadlineExceeded)
      problem.lost = HangingRankProblem(0, "").lost;
  }
  return problem;
}

}  // namespace

PeerWatch::PeerWatch(int rank, int size, std::shared_ptr<StoreServer> server,
                     std::shared_ptr<Store> store)
    : rank_(rank), size_(size), server_(std::move(server)), store_(std::move(store)) {}

PeerWatch::~PeerWatch() {
  StopHeartbeat();
  if (problem_.empty() && !abandoned_) SayGoodbye();
}

// The store goes with rank 0. Others may still need it for words that were posted before, so rank 0
// goes last.
void PeerWatch::SayGoodbye() try {
  // The server is in rank 0's own process. It is late only if that process, or the machine, stood
  // still. A rank 0 that gave up then would take the store from the others.
  const Clock::time_point deadline = Clock::now() + patience_;
  const auto be_patient = [&] {
    store_->SetPatience(rank_ == 0 ? std::max(kMoment, TimeLeft(deadline)) : kMoment);
  };
  be_patient();
  store_->Leave({{kFinishedRank, RankName(rank_)},  // for ranks that wait for this one
                 {RankKey(kBye, rank_), ""}});
  std::vector<int> left = RanksBetween(1, rank_ == 0 ? size_ : 0);
  while (!left.empty() && Clock::now() < deadline) {
    left = AwaitRanks(*store_, kBye, left, std::min(kMoment, TimeLeft(deadline)));
    be_patient();
    const std::vector<int> gone = FindGone(*store_, left);
    std::erase_if(left, [&](int rank) { return std::ranges::count(gone, rank) > 0; });
  }
  if (left.empty()) return;
  std::cerr << "note: rank 0 has waited " << SecondsText(patience_) << " for " << RankNames(left)
            << " to end, and ends without " << (left.size() == 1 ? "it" : "them") << std::endl;
} catch (const Error&) {
  // Rank 0 is gone already.
}

std::vector<int> PeerWatch::FindGone(Store& store, const std::vector<int>& ranks) {
  constexpr size_t kKeys = 3;  // of each rank
  std::vector<std::string> keys;
  for (const int rank : ranks) {
    keys.insert(keys.end(), {RankKey(kBye, rank), RankKey(kGivesUp, rank),
                             std::string(Store::kGone) + "/" + RankName(rank)});
  }
  const auto values = store.GetSeveral(keys, Milliseconds(0));
  std::vector<int> gone;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (values[kKeys * i] || values[kKeys * i + 1] || values[kKeys * i + 2])
      gone.push_back(ranks[i]);
  }
  return gone;
}

void PeerWatch::Run(const char* what, const std::function<void()>& body) {
  const std::lock_guard lock(mutex_);
  if (!problem_.empty()) throw CannotGoOnError(what, rank_, problem_);
  const auto agree = [&](const GroupProblem& noticed) {
    try {
      problem_ = AgreeOnProblem(what, noticed);
    } catch (const Error& store_error) {
      problem_ = noticed.IsFaultOf(rank_) ? noticed : ProblemOfStore(store_error);
    }
    return CannotGoOnError(what, rank_, problem_);
  };
  // Ends after the problem is agreed on: until then this rank waits for the others.
  const absl::Cleanup end_call = [this] { call_->what = nullptr; };
  ++call_->number;
  call_->what = what;
  try {
    body();
  } catch (const OwnFault& e) {
    throw agree(FailedRankProblem(rank_, e.what()));
  } catch (const CallsDiffer& e) {
    throw agree({.text = e.what()});
  } catch (const std::exception& e) {
    throw agree(ConnectionFailed(e));
  }
}

void PeerWatch::LeaveTogether(const GroupProblem& problem) try {
  store_->Leave({{RankKey(kGivesUp, rank_), ""}});
  // Rank 0 takes the store with it, so it goes last of the ranks that still answer.
  if (rank_ != 0) return;
  std::vector<int> others = RanksBetween(1, size_);
  std::erase_if(others, [&](int rank) { return problem.lost && problem.lost->Includes(rank); });
  AwaitRanks(*store_, kGivesUp, others, 2 * kMoment);
} catch (const Error&) {
  // Rank 0 has received the goodbye and gone before it answered.
}

void PeerWatch::CheckAllLive() {
  // A rank counts as hanging once its last sign of life is too old, however late this rank needs
  // it.
  if (const GroupProblem lost = FindLostRank(); !lost.empty()) {
    const Error error(absl::StatusCode::kUnavailable, lost.text);
    throw lost.lost ? error.WithDetail(*lost.lost) : error;
  }
  if (FindEndedPeer()) throw std::runtime_error("a process has ended");
}

// Returns the name of the first rank that has ended or is about to; nullopt if all live.
std::optional<std::string> PeerWatch::FindEndedPeer(Milliseconds wait) {
  const auto name = store_->Get(Store::kGone, wait);
  return name ? name : store_->Get(kFinishedRank, Milliseconds(0));
}

void PeerWatch::CheckForProblems() {
  CheckAllLive();
  if (extra_check_) extra_check_();
  if (!store_->Get(kTrouble, Milliseconds(0))) return;
  const char* const call = call_->what;
  store_->Set(RankKey(kWaitsIn, rank_), call == nullptr ? "" : call);
  throw std::runtime_error("another rank can't go on");
}

std::vector<std::string> PeerWatch::Exchange(const std::string& key, const std::string& mine,
                                             Milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  const auto get = [&](const std::string& what, const std::vector<int>& numbers) {
    while (!AwaitRanks(*store_, what, numbers, std::min(kMoment, TimeLeft(deadline))).empty()) {
      CheckForProblems();
      if (Clock::now() >= deadline) throw std::runtime_error("no answer");
    }
    return store_->GetSeveral(RankKeys(what, numbers), Milliseconds(0));
  };
  store_->Set(RankKey(key, rank_), mine);
  // If every rank asked for the key of every other one, the store would look up N^2 keys. So the
  // first rank of each block puts the block's values under one key.
  constexpr int kBlock = 256;
  const std::string blocks = "block of " + key;
  if (rank_ % kBlock == 0) {
    std::string list;
    for (const auto& value : get(key, RanksBetween(rank_, std::min(rank_ + kBlock, size_))))
      store_protocol::AppendText(list, value.value());
    store_->Set(RankKey(blocks, rank_ / kBlock), list);
  }
  std::vector<std::string> all;
  for (const auto& list : get(blocks, RanksBetween(0, (size_ + kBlock - 1) / kBlock))) {
    auto values = store_protocol::ParseList(list.value());
    for (auto& value : values.value()) all.push_back(*std::move(value));
  }
  return all;
}

void PeerWatch::CheckPeers() {
  if (!FindLostRank().empty()) Run("check_peers", [this] { CheckAllLive(); });
}

void PeerWatch::SetPhase(const std::string& phase) try {
  {
    const std::lock_guard lock(phase_mutex_);
    phase_ = phase;
  }
  store_->Set(RankKey(kPhase, rank_), phase);
} catch (const Error&) {
  // Nobody will ask for it.
}

void PeerWatch::SetPatience(Milliseconds patience) {
  store_->SetPatience(abandoned_ ? std::min(patience, kMoment) : patience);
}

void PeerWatch::Abandon() {
  abandoned_ = true;
  store_->SetPatience(kMoment);
}

void PeerWatch::PostMessage(const std::string& key, const std::string& value) try {
  store_->Set("word/" + key, value);
} catch (const Error& e) {
  throw CannotGoOnError("post", rank_, ProblemOfStore(e));
}

std::string PeerWatch::AwaitMessage(const std::string& key, int from) {
  GroupProblem problem;
  try {
    while (problem.empty()) {
      if (const auto value = store_->Get("word/" + key, kMoment)) return *value;
      auto ended = store_->Get(Store::kGone, Milliseconds(0));
      if (!ended && store_->Get(RankKey(kBye, from), Milliseconds(0))) ended = RankName(from);
      if (ended) {
        // The rank may have posted the word just before it ended.
        if (const auto value = store_->Get("word/" + key, Milliseconds(0))) return *value;
        problem = ProblemOfEnded(*store_, *ended);
      } else if (const auto agreed = store_->Get(kProblem, Milliseconds(0))) {
        problem = ParseGroupProblem(*agreed);
      } else {
        problem = FindLostRank();
      }
    }
  } catch (const Error& e) {
    problem = ProblemOfStore(e);
  }
  throw CannotGoOnError("await", rank_, problem);
}

std::optional<std::string> PeerWatch::FindMessage(const std::string& key, Milliseconds time) try {
  return store_->Get("word/" + key, time);
} catch (const Error& e) {
  throw CannotGoOnError("find", rank_, ProblemOfStore(e));
}

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
    agreed = store_->Get(kProblem, time_to_answer_ + kMoment);
  }
  if (!agreed) {
    const std::string found = Serialize(own_fault ? noticed : FindCulprit(what, noticed));
    if (store_->Add("problems", 1) == 1) store_->Set(kProblem, found);
    store_->Set(kTrouble, "");
    agreed = store_->Get(kProblem, kMoment).value_or(found);
  }
  GroupProblem problem = ParseGroupProblem(*agreed);
  LeaveTogether(problem);
  return problem;
}

// Finds the rank that is to blame. The store knows ranks that died. A rank hangs if it doesn't say
// that it waits, too. Returns `noticed` if no rank is to blame.
GroupProblem PeerWatch::FindCulprit(const char* what, const GroupProblem& noticed) {
  if (const auto ended = FindEndedPeer(kMoment)) return ProblemOfEnded(*store_, *ended);
  if (const auto silent = store_->Get(kSilent, Milliseconds(0))) return ParseGroupProblem(*silent);
  store_->Set(RankKey(kWaitsIn, rank_), what);
  store_->Set(kTrouble, "");
  const std::vector<int> ranks = RanksBetween(0, size_);
  const auto calls = store_->GetSeveral(RankKeys(kWaitsIn, ranks), time_to_answer_);
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
  if (const auto ended = FindEndedPeer()) return ProblemOfEnded(*store_, *ended);
  if (!silent.empty()) return HangingRanks(silent);
  if (!same) return {.text = "the ranks' calls don't match: " + busy};
  return noticed;
}

// Names what each of the ranks was doing, or once for all what they all were doing.
GroupProblem PeerWatch::HangingRanks(const std::vector<int>& ranks) {
  std::vector<std::string> phases;
  for (const auto& phase : store_->GetSeveral(RankKeys(kPhase, ranks), Milliseconds(0)))
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
std::string PeerWatch::PhaseOf(Store& store, int rank) {
  return store.Get(RankKey(kPhase, rank), Milliseconds(0)).value_or("");
}

GroupProblem PeerWatch::ProblemOfEnded(Store& store, const std::string& name) {
  const int rank = RankOfName(name);
  return EndedRankProblem(rank, PhaseOf(store, rank));
}

void PeerWatch::PollUntil(Milliseconds timeout, const std::function<bool()>& is_done) {
  // In a large job the store has better things to do.
  const Milliseconds look_interval = std::max(Milliseconds(100), Milliseconds(2 * size_));
  const Clock::time_point start = Clock::now();
  Clock::time_point deadline = start + timeout, next_look = start + look_interval;
  std::exception_ptr trouble;
  while (!is_done()) {
    const Clock::time_point now = Clock::now();
    if (now >= deadline) {
      if (trouble) std::rethrow_exception(trouble);
      throw std::runtime_error("no answer");
    }
    if (!trouble && now >= next_look) {
      try {
        CheckForProblems();
        next_look = Clock::now() + look_interval;
      } catch (const std::exception&) {
        // A rank that has finished the last call may end while this one is still in it.
        trouble = std::current_exception();
        deadline = std::min(deadline, Clock::now() + kMoment);
      }
    }
    if (now - start < std::chrono::microseconds(200)) {
      std::this_thread::yield();
      continue;
    }
    const Clock::time_point before = Clock::now();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    // A process that was stopped, or whose machine was, has not waited meanwhile.
    const auto pause = Clock::now() - before;
    if (pause > kStandstill) deadline += pause;
  }
}

}  // namespace lathe
