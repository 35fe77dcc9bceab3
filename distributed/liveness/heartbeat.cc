#include "lathe/distributed/liveness/heartbeat.h"

#include <absl/status/status.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/distributed/liveness/peer_watch.h"
#include "lathe/distributed/rendezvous/rank_names.h"

namespace lathe {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kAtOnce{0}, kBeforeCall{200}, kBeforeAlarm{1000};

}  // namespace

struct Heartbeat::State {
  int rank, size;
  std::shared_ptr<Store> store;
  Milliseconds interval;
  int64_t rounds;  // the number of rounds for which the next rank may be silent

  mutable std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
  GroupProblem lost;
  std::function<void(bool rank_0)> on_lost_rank;
  std::mutex alarm_mutex;
  std::function<void(const GroupProblem&)> alarm;

  // Waits for `time`, and returns true at once when the thread is to end.
  bool Pause(Milliseconds time) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, time, [this] { return stopped; });
  }

  std::string PhaseOf(int of) const {
    return store->Get(RankKey(PeerWatch::kPhase, of), kAtOnce).value_or("");
  }

  // Leaves a sign and returns what is known of a lost rank; an empty problem if there is none. Sets
  // `over` if a rank has left because its work is done.
  GroupProblem Look(int64_t& sign, int64_t& missed, std::string& last, bool& over) const {
    store->Set(RankKey("sign", rank), std::to_string(++sign));
    if (const auto silent = store->Get(kSilent, kAtOnce)) return ParseGroupProblem(*silent);
    if (const auto problem = store->Get(PeerWatch::kProblem, kAtOnce))
      return ParseGroupProblem(*problem);
    over = store->Get(PeerWatch::kFinishedRank, kAtOnce).has_value();
    if (over) return {};
    if (const auto gone = store->Get(Store::kGone, kAtOnce)) {
      const int ended = RankOfName(*gone);
      return EndedRankProblem(ended, PhaseOf(ended));
    }
    const int neighbour = (rank + 1) % size;
    std::string now = store->Get(RankKey("sign", neighbour), kAtOnce).value_or("");
    if (std::exchange(last, std::move(now)) != last) missed = 0;
    if (++missed <= rounds) return {};
    const GroupProblem silent = HangingRankProblem(neighbour, PhaseOf(neighbour));
    store->Set(kSilent, Serialize(silent));
    return silent;
  }

  void Run() {
    int64_t sign = 0, missed = 0;
    std::string last;
    GroupProblem found;
    bool over = false, rank_0 = false;
    while (found.empty() && !over) {
      if (Pause(interval)) return;
      try {
        found = Look(sign, missed, last, over);
      } catch (const Error& e) {
        const bool hangs = e.code() == absl::StatusCode::kDeadlineExceeded;
        found = hangs ? HangingRankProblem(0, "") : EndedRankProblem(0, "");
        rank_0 = true;
      }
    }
    if (over) return;
    {
      const std::lock_guard lock(mutex);
      lost = found;
    }
    if (Pause(kBeforeCall)) return;
    if (on_lost_rank) on_lost_rank(rank_0);
    while (!Pause(kBeforeAlarm)) {
      const std::lock_guard lock(alarm_mutex);
      if (alarm) std::exchange(alarm, nullptr)(found);
    }
  }
};

Heartbeat::Heartbeat(int rank, int size, std::shared_ptr<Store> store, Milliseconds timeout,
                     std::function<void(bool rank_0)> on_lost_rank)
    : state_(std::make_shared<State>()) {
  state_->on_lost_rank = std::move(on_lost_rank);
  state_->rank = rank;
  state_->size = size;
  state_->store = std::move(store);
  state_->interval = std::clamp(timeout / 16, Milliseconds(100), Milliseconds(500));
  state_->rounds = (timeout + state_->interval - Milliseconds(1)) / state_->interval;
  state_->store->SetPatience(std::max(timeout, Milliseconds(500)));
  // The thread may hang in the store if rank 0 does, so nobody waits for it.
  std::thread([state = state_] { state->Run(); }).detach();
}

Heartbeat::~Heartbeat() {
  SetAlarm(nullptr);
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopped = true;
  }
  state_->changed.notify_all();
}

GroupProblem Heartbeat::FindLostRank() const {
  const std::lock_guard lock(state_->mutex);
  return state_->lost;
}

void Heartbeat::SetAlarm(std::function<void(const GroupProblem&)> alarm) {
  const std::lock_guard lock(state_->alarm_mutex);
  state_->alarm = std::move(alarm);
}

}  // namespace lathe
