// The part of the watch that finds out whether the other ranks live while this rank is in no call
// that needs them. A thread of each rank leaves a sign of life in the job's store at intervals, and
// looks for the next rank's.
#include <absl/status/status.h>
#include <absl/strings/numbers.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/distributed/liveness/peer_watch.h"
#include "lathe/distributed/rendezvous/rank_names.h"

namespace lathe {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// kBeforeAlarm leaves time for calls that notice the lost rank by themselves.
constexpr Milliseconds kAtOnce{0}, kBeforeCall{200}, kBeforeAlarm{1000};
constexpr char kSign[] = "sign";

}  // namespace

// Times are counted in rounds of this process, so a job that was suspended as a whole goes on, as
// does one on a machine that was suspended. Once any rank has left because its work is done, the
// watching stops. When another rank looks for a culprit, the thread answers for this rank if it is
// in a call.
struct PeerWatch::Heartbeat {
  const int rank, size;
  const std::shared_ptr<Store> store;    // a connection for one of the threads alone
  const std::shared_ptr<Store> watched;  // the connection that the calls use
  const Milliseconds timeout;
  const std::shared_ptr<const CurrentCall> call;
  const std::function<void()> on_lost_rank;

  std::mutex mutex = {};
  std::condition_variable changed = {};
  bool stopped = false;
  GroupProblem lost = {};
  std::mutex alarm_mutex = {};
  std::function<void(const Error&)> alarm = {};

  // The rest belongs to the thread that gives the signs.
  Milliseconds interval{0};  // 0 until the limit is known
  int64_t rounds = 0;        // the number of rounds for which the next rank may be silent
  int64_t sign = 0, missed = 0;
  std::string last_sign = "";  // the next rank's
  bool over = false;           // a rank has left because its work is done

  // Waits for `time`, and returns true at once when the thread is to end.
  bool Pause(Milliseconds time) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, time, [this] { return stopped; });
  }

  void FindLimit() {
    store->SetPatience(std::max(timeout, kMoment));
    int64_t set = 0;
    const bool is_set = absl::SimpleAtoi(store->Get(kHeartbeatLimit, kAtOnce).value_or(""), &set);
    const Milliseconds limit = is_set && set > 0 ? Milliseconds(set) : timeout;
    store->SetPatience(std::max(limit, kMoment));
    // In a large job the store has better things to do.
    interval = std::max(std::clamp(limit / 16, Milliseconds(100), Milliseconds(500)),
                        std::min(limit / 8, Milliseconds(size)));
    rounds = (limit + interval - Milliseconds(1)) / interval;
  }

  // Leaves a sign and returns what is known of a lost rank; an empty problem if there is none.
  GroupProblem Look() {
    if (interval == kAtOnce) FindLimit();
    const int neighbour = (rank + 1) % size;
    store->Set(RankKey(kSign, rank), std::to_string(++sign));
    const auto found = store->GetSeveral(
        {kSilent, kProblem, kFinishedRank, Store::kGone, kTrouble, RankKey(kSign, neighbour)},
        kAtOnce);
    const auto& [silent, problem, finished, gone, trouble] =
        std::tie(found[0], found[1], found[2], found[3], found[4]);
    if (silent) return ParseGroupProblem(*silent);
    if (problem) return ParseGroupProblem(*problem);
    over = finished.has_value();
    if (over) return {};
    if (gone) return ProblemOfEnded(*store, *gone);
    const char* const what = call->what;
    if (trouble && what != nullptr) store->Set(RankKey(kWaitsIn, rank), what);
    if (std::exchange(last_sign, found[5].value_or("")) != last_sign) missed = 0;
    if (++missed <= rounds) return {};
    const GroupProblem hangs = HangingRankProblem(neighbour, PhaseOf(*store, neighbour));
    store->Set(kSilent, Serialize(hangs));
    return hangs;
  }

  // Ends a call that lasts too long. On a thread of its own, as the other one may wait for the
  // store of a rank that hangs.
  void TimeCalls() {
    constexpr Milliseconds kRound{100}, kLongestRound{1000};
    int64_t number = 0;
    Clock::time_point last = Clock::now();
    Clock::duration in_call{0};  // but for times in which this process stood still
    while (!Pause(kRound)) {
      const Clock::time_point now = Clock::now();
      const Clock::duration round =
          std::min<Clock::duration>(now - std::exchange(last, now), kLongestRound);
      const bool is_new = std::exchange(number, call->number) != call->number;
      in_call = is_new || call->what == nullptr ? Clock::duration(0) : in_call + round;
      if (in_call > timeout) return on_lost_rank();
    }
  }

  void Run() {
    GroupProblem found;
    bool rank_0 = false;
    // The first sign comes at once.
    for (Milliseconds pause = kAtOnce; found.empty() && !over; pause = interval) {
      if (Pause(pause)) return;
      try {
        found = Look();
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
    // A call that waits for a hanging store would otherwise notice this only a timeout after it
    // began.
    if (rank_0) watched->BreakOff();
    on_lost_rank();
    while (!Pause(kBeforeAlarm)) {
      const std::lock_guard lock(alarm_mutex);
      if (alarm) std::exchange(alarm, nullptr)(CannotGoOnError("alarm", rank, found));
    }
  }
};

// The threads may hang in the store if rank 0 does, so nobody waits for them.
void PeerWatch::StartHeartbeat(std::shared_ptr<Store> store, Milliseconds timeout,
                               std::function<void()> on_lost_rank) {
  patience_ = timeout;
  life_.reset(new Heartbeat{rank_, size_, std::move(store), store_, timeout, call_,
                            std::move(on_lost_rank)});
  try {
    // Before the thread starts: rank 0, which serves the store, may hang from any moment on.
    life_->FindLimit();
  } catch (const Error&) {
    // The thread finds out who is lost.
  }
  std::thread([life = life_] { life->Run(); }).detach();
  std::thread([life = life_] { life->TimeCalls(); }).detach();
}

// Doesn't wait for the store.
void PeerWatch::StopHeartbeat() {
  if (life_ == nullptr) return;
  SetAlarm(nullptr);
  const std::lock_guard lock(life_->mutex);
  life_->stopped = true;
  life_->changed.notify_all();
}

// Returns what is known of a lost rank; an empty problem if none is known to be lost.
GroupProblem PeerWatch::FindLostRank() const {
  if (life_ == nullptr) return {};
  const std::lock_guard lock(life_->mutex);
  return life_->lost;
}

void PeerWatch::SetAlarm(std::function<void(const Error&)> alarm) {
  if (life_ == nullptr) return;
  const std::lock_guard lock(life_->alarm_mutex);
  life_->alarm = std::move(alarm);
}

}  // namespace lathe
