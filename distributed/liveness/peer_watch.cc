#include "lathe/distributed/liveness/peer_watch.h"

#include <algorithm>
#include <iostream>
#include <thread>
#include <utility>

#include "lathe/distributed/liveness/lost_ranks.h"

namespace lathe {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr Milliseconds kMoment{500};
constexpr char kTrouble[] = "trouble";  // a rank sets this key before it looks for the culprit

std::string RankName(int rank) { return "rank " + std::to_string(rank); }
std::string RankKey(const std::string& what, int rank) { return what + "/" + std::to_string(rank); }
// Keys that a rank sets when its work is done, and when it gives up together with others.
constexpr char kBye[] = "bye", kKnows[] = "knows";

// Returns true if the text names the rank. "rank 12 has ended" names rank 12 and not rank 1.
bool Names(const std::string& text, int rank) {
  const std::string name = RankName(rank);
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    const size_t end = at + name.size();
    if (end == text.size() || text[end] < '0' || text[end] > '9') return true;
  }
  return false;
}

Milliseconds Left(Clock::time_point deadline) {
  return std::max(std::chrono::duration_cast<Milliseconds>(deadline - Clock::now()),
                  Milliseconds(0));
}

}  // namespace

PeerWatch::PeerWatch(int rank, int size, std::shared_ptr<StoreServer> server,
                     std::shared_ptr<Store> store)
    : rank_(rank), size_(size), server_(std::move(server)), store_(std::move(store)) {}

PeerWatch::~PeerWatch() {
  life_.reset();
  if (!problem_.empty() || abandoned_) return;
  try {
    SayGoodbye();
  } catch (const Error&) {
    // Rank 0 is gone already.
  }
}

// The store goes with rank 0. Others may still need it for words that were posted before, so rank 0
// goes last.
void PeerWatch::SayGoodbye() {
  // The server is in rank 0's own process. It is late only if that process, or the machine, stood
  // still. A rank 0 that gave up then would take the store from the others.
  const Clock::time_point deadline = Clock::now() + patience_;
  const auto be_patient = [&] {
    store_->SetPatience(rank_ == 0 ? std::max(kMoment, Left(deadline)) : kMoment);
  };
  be_patient();
  store_->Leave({{kLeft, RankName(rank_)},  // for ranks that wait for this one
                 {RankKey(kBye, rank_), ""}});
  std::string left;
  for (int other = 1; rank_ == 0 && other < size_; ++other) {
    while (!store_->Get(RankKey(kBye, other), std::min(kMoment, Left(deadline)))) {
      be_patient();
      if (HasGone(*store_, other)) break;
      if (Clock::now() < deadline) continue;
      left += (left.empty() ? "" : ", ") + RankName(other);
      break;
    }
  }
  if (left.empty()) return;
  std::cerr << "note: rank 0 has waited " << std::chrono::duration<double>(patience_).count()
            << " s for the end of " << left << ", and ends" << std::endl;
}

bool PeerWatch::HasGone(Store& store, int rank) {
  const auto is_set = [&](const std::string& key) {
    return store.Get(key, Milliseconds(0)).has_value();
  };
  return is_set(RankKey(kBye, rank)) || is_set(RankKey(kKnows, rank)) ||
         is_set(std::string(Store::kGone) + "/" + RankName(rank));
}

void PeerWatch::Run(const char* what, const std::function<void()>& body) {
  const std::lock_guard lock(mutex_);
  if (!problem_.empty()) throw Failure(what, problem_);
  const auto agree = [&](const std::exception& e, bool own_fault) {
    try {
      problem_ = AgreeOnProblem(what, e.what(), own_fault);
    } catch (const Error& store_error) {
      problem_ = own_fault ? RankName(rank_) + ": " + e.what() : ProblemOfStore(store_error);
    }
    return Failure(what, problem_);
  };
  try {
    body();
  } catch (const OwnFault& e) {
    throw agree(e, true);
  } catch (const std::exception& e) {
    throw agree(e, false);
  }
}

Error PeerWatch::Failure(const char* what, const std::string& problem) const {
  return Error(
      absl::StatusCode::kUnavailable,
      std::string("[") + what + "] rank " + std::to_string(rank_) + " can't go on: " + problem,
      kLostRankHint);
}

// Returns what broke the group, in the words of the first rank that found out. A rank that goes
// because another has gone is not missed itself.
std::string PeerWatch::AgreeOnProblem(const char* what, const std::string& said, bool own_fault) {
  store_->SetPatience(kMoment);
  auto blame = store_->Get(kBlame, Milliseconds(0));
  if (!blame && !own_fault && store_->Get(kTrouble, Milliseconds(0))) {
    // Another rank looks for the culprit already.
    store_->Set(RankKey("waits", rank_), what);
    blame = store_->Get(kBlame, 3 * kMoment);
  }
  if (!blame) {
    const std::string found = own_fault ? RankName(rank_) + ": " + said : FindCulprit(what, said);
    if (store_->Add("blames", 1) == 1) store_->Set(kBlame, found);
    store_->Set(kTrouble, "");
    blame = store_->Get(kBlame, kMoment);
    if (!blame) blame = found;
  }
  Part(*blame);
  return *blame;
}

void PeerWatch::Part(const std::string& blame) try {
  store_->Leave({{RankKey(kKnows, rank_), ""}});
  // Rank 0 takes the store with it, so it goes last of the ranks that still answer.
  const auto deadline = Clock::now() + 2 * kMoment;
  for (int other = 1; rank_ == 0 && other < size_; ++other) {
    if (Names(blame, other)) continue;
    store_->Get(RankKey(kKnows, other), Left(deadline));
  }
} catch (const Error&) {
  // Rank 0 has received the goodbye and gone before it answered.
}

// Finds the rank that is to blame. The store knows ranks that died. A rank hangs if it doesn't say
// that it waits, too.
std::string PeerWatch::FindCulprit(const char* what, const std::string& said) {
  if (const std::string ended = Ended(kMoment); !ended.empty())
    return ended + " has ended" + PhaseOf(ended);
  if (const auto silent = store_->Get(LifeSigns::kSilent, Milliseconds(0))) return *silent;
  store_->Set(RankKey("waits", rank_), what);
  store_->Set(kTrouble, "");
  std::string silent, busy;
  bool same = true;
  for (int other = 0; other < size_; ++other) {
    const std::string name = RankName(other);
    if (const auto call = store_->Get(RankKey("waits", other), kMoment)) {
      busy += (busy.empty() ? "" : ", ") + name + " is in " + *call;
      same = same && *call == what;
    } else {
      silent += (silent.empty() ? "" : ", ") + name + " does not answer" + PhaseOf(name);
    }
  }
  if (const std::string ended = Ended(Milliseconds(0)); !ended.empty())
    return ended + " has ended" + PhaseOf(ended);
  if (!silent.empty()) return silent;
  if (!same) return "the ranks' calls don't match: " + busy;
  if (said == kOtherSize) return said;
  return "the connection to another rank failed: " + said;
}

// The store was rank 0's, and rank 0's phase is gone with it. All ranks do the same at a time, so
// the message names this rank's phase.
std::string PeerWatch::ProblemOfStore(const Error& e) const {
  const std::lock_guard lock(phase_mutex_);
  const bool hangs = e.code() == absl::StatusCode::kDeadlineExceeded ||
                     Loss().starts_with("rank 0 does not answer");
  return std::string(hangs ? "rank 0 does not answer" : "rank 0 has ended") +
         (phase_.empty() ? "" : "; this rank was " + phase_);
}

// Returns " while training", as that rank has said; "" if it has said nothing.
std::string PeerWatch::PhaseOf(const std::string& name) {
  const auto phase = store_->Get("phase/" + name, Milliseconds(0));
  return phase ? " while " + *phase : "";
}

void PeerWatch::CheckAllLive() {
  // A rank that hangs is missed from its last sign of life on, not from when this rank needs it.
  if (const std::string loss = Loss(); !loss.empty()) throw std::runtime_error(loss);
  if (!Ended().empty()) throw std::runtime_error("a process has ended");
}

std::string PeerWatch::Loss() const { return life_ == nullptr ? "" : life_->Loss(); }

// Returns the first rank that has ended, or one that is about to; "" if all live.
std::string PeerWatch::Ended(Milliseconds wait) {
  if (const auto gone = store_->Get(Store::kGone, wait)) return *gone;
  return store_->Get(kLeft, Milliseconds(0)).value_or("");
}

void PeerWatch::LookAround() {
  CheckAllLive();
  if (elsewhere_) elsewhere_();
  if (!store_->Get(kTrouble, Milliseconds(0))) return;
  store_->Set(RankKey("waits", rank_),
              "");  // so that the rank that looks for the culprit passes this one by
  throw std::runtime_error("another rank can't go on");
}

std::vector<std::string> PeerWatch::Exchange(const std::string& key, const std::string& mine,
                                             Milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  store_->Set(RankKey(key, rank_), mine);
  std::vector<std::string> all;
  for (int other = 0; other < size_; ++other) {
    for (;;) {
      if (auto value = store_->Get(RankKey(key, other), std::min(kMoment, Left(deadline)))) {
        all.push_back(*std::move(value));
        break;
      }
      LookAround();
      if (Clock::now() >= deadline) throw std::runtime_error("no answer");
    }
  }
  return all;
}

void PeerWatch::LookAfter(std::shared_ptr<Store> store, Milliseconds timeout,
                          std::function<void()> on_loss) {
  patience_ = timeout;
  // A call that waits for a hanging store would otherwise notice this only a timeout after it
  // began.
  const auto and_the_store = [watched = store_, on_loss = std::move(on_loss)](bool rank_0) {
    if (rank_0) watched->BreakOff();
    if (on_loss) on_loss();
  };
  life_ = std::make_unique<LifeSigns>(rank_, size_, std::move(store), timeout, and_the_store);
}

void PeerWatch::CheckPeers() {
  const std::string loss = Loss();
  if (!loss.empty()) Run("check_peers", [&] { throw std::runtime_error(loss); });
}

void PeerWatch::SetAlarm(const std::function<void(const Error&)>& alarm) {
  if (life_ == nullptr) return;
  if (!alarm) return life_->SetAlarm(nullptr);
  life_->SetAlarm([this, alarm](const std::string& loss) { alarm(Failure("alarm", loss)); });
}

void PeerWatch::SetPhase(const std::string& phase) {
  {
    const std::lock_guard lock(phase_mutex_);
    phase_ = phase;
  }
  try {
    store_->Set("phase/" + RankName(rank_), phase);
  } catch (const Error&) {
    // Nobody will ask for it.
  }
}

void PeerWatch::SetPatience(Milliseconds patience) {
  store_->SetPatience(abandoned_ ? std::min(patience, kMoment) : patience);
}

void PeerWatch::Abandon() {
  abandoned_ = true;
  store_->SetPatience(kMoment);
}

void PeerWatch::Post(const std::string& key, const std::string& value) try {
  store_->Set("word/" + key, value);
} catch (const Error& e) {
  throw Failure("post", ProblemOfStore(e));
}

std::string PeerWatch::Await(const std::string& key, int from) {
  std::string problem;
  try {
    while (problem.empty()) {
      if (const auto value = store_->Get("word/" + key, kMoment)) return *value;
      std::string ended = store_->Get(Store::kGone, Milliseconds(0)).value_or("");
      if (ended.empty() && store_->Get(RankKey(kBye, from), Milliseconds(0)))
        ended = RankName(from);
      if (!ended.empty()) {
        // The rank may have posted the word just before it ended.
        if (const auto value = store_->Get("word/" + key, Milliseconds(0))) return *value;
        problem = ended + " has ended" + PhaseOf(ended);
      } else if (const auto blame = store_->Get(kBlame, Milliseconds(0))) {
        problem = *blame;
      } else {
        problem = Loss();
      }
    }
  } catch (const Error& e) {
    problem = ProblemOfStore(e);
  }
  throw Failure("await", problem);
}

std::optional<std::string> PeerWatch::Find(const std::string& key, Milliseconds time) try {
  return store_->Get("word/" + key, time);
} catch (const Error& e) {
  throw Failure("find", ProblemOfStore(e));
}

PeerPatience::PeerPatience(PeerWatch& watch, Milliseconds timeout)
    : watch_(watch),
      // In a large job the store has better things to do.
      look_interval_(std::max(Milliseconds(100), Milliseconds(2 * watch.size()))),
      start_(Clock::now()),
      deadline_(start_ + timeout),
      next_look_(start_ + look_interval_) {}

void PeerPatience::Pause() {
  const Clock::time_point now = Clock::now();
  if (now >= deadline_) {
    if (trouble_) std::rethrow_exception(trouble_);
    throw std::runtime_error("no answer");
  }
  if (!trouble_ && now >= next_look_) {
    try {
      watch_.LookAround();
      next_look_ = Clock::now() + look_interval_;
    } catch (const std::exception&) {
      // A rank that has finished the last call may end while this one is still in it.
      trouble_ = std::current_exception();
      deadline_ = std::min(deadline_, Clock::now() + kMoment);
    }
  }
  if (now - start_ < std::chrono::microseconds(200)) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace lathe
