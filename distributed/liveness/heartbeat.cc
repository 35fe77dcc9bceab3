#include "lathe/distributed/liveness/heartbeat.h"

#include <absl/status/status.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <mutex>
#include <optional>
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

constexpr Milliseconds kAtOnce{0}, kBeforeCall{200}, kBeforeAlarm{1000};
constexpr char kSign[] = "sign";

// Measures how long this rank has been in its call, but for times in which it stood still.
class CallTimer {
 public:
  static constexpr Milliseconds kRound{100}, kLongestRound{1000};
  // To be called once a round. Returns the time in the call; 0 outside of calls.
  Clock::duration Look(const CurrentCall& call) {
    const Clock::time_point now = Clock::now();
    const Clock::duration round =
        std::min<Clock::duration>(now - std::exchange(last_, now), kLongestRound);
    const bool is_new = std::exchange(number_, call.number()) != call.number();
    in_call_ = is_new || call.what() == nullptr ? Clock::duration(0) : in_call_ + round;
    return in_call_;
  }

 private:
  int64_t number_ = 0;
  Clock::time_point last_ = Clock::now();
  Clock::duration in_call_{0};
};

}  // namespace

struct Heartbeat::State {
  int rank, size;
  std::shared_ptr<Store> store;
  HeartbeatOptions options;

  mutable std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
  GroupProblem lost;
  std::mutex alarm_mutex;
  std::function<void(const GroupProblem&)> alarm;

  // The rest belongs to the thread that gives the signs.
  Milliseconds interval{0};  // 0 until the limit is known
  int64_t rounds = 0;        // the number of rounds for which the next rank may be silent
  int64_t sign = 0, missed = 0;
  std::string last_sign;  // the next rank's
  bool over = false;      // a rank has left because its work is done

  // Waits for `time`, and returns true at once when the thread is to end.
  bool Pause(Milliseconds time) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, time, [this] { return stopped; });
  }

  std::string PhaseOf(int of) const {
    return store->Get(RankKey(PeerWatch::kPhase, of), kAtOnce).value_or("");
  }

  void FindLimit() {
    const Milliseconds usual = options.limit;
    store->SetPatience(std::max(usual, Milliseconds(500)));
    if (const auto set = store->Get(kLimit, kAtOnce)) {
      int64_t count = 0;
      std::from_chars(set->data(), set->data() + set->size(), count);
      if (count > 0) options.limit = Milliseconds(count);
    }
    const Milliseconds limit = options.limit;
    store->SetPatience(std::max(limit, Milliseconds(500)));
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
    const auto found =
        store->GetSeveral({kSilent, PeerWatch::kProblem, PeerWatch::kFinishedRank, Store::kGone,
                           PeerWatch::kTrouble, RankKey(kSign, neighbour)},
                          kAtOnce);
    const auto& [silent, problem, finished, gone, trouble] =
        std::tie(found[0], found[1], found[2], found[3], found[4]);
    if (silent) return ParseGroupProblem(*silent);
    if (problem) return ParseGroupProblem(*problem);
    over = finished.has_value();
    if (over) return {};
    if (gone) {
      const int ended = RankOfName(*gone);
      return EndedRankProblem(ended, PhaseOf(ended));
    }
    const char* const call = options.call->what();
    if (trouble && call != nullptr) store->Set(RankKey(PeerWatch::kWaitsIn, rank), call);
    if (std::exchange(last_sign, found[5].value_or("")) != last_sign) missed = 0;
    if (++missed <= rounds) return {};
    const GroupProblem hangs = HangingRankProblem(neighbour, PhaseOf(neighbour));
    store->Set(kSilent, Serialize(hangs));
    return hangs;
  }

  // Ends a call that lasts too long. On a thread of its own, as the other one may wait for the
  // store of a rank that hangs.
  void TimeCalls() {
    CallTimer timer;
    while (!Pause(CallTimer::kRound)) {
      if (timer.Look(*options.call) <= options.longest_call) continue;
      if (options.on_trouble) options.on_trouble(false);
      return;
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
    if (options.on_trouble) options.on_trouble(rank_0);
    while (!Pause(kBeforeAlarm)) {
      const std::lock_guard lock(alarm_mutex);
      if (alarm) std::exchange(alarm, nullptr)(found);
    }
  }
};

Heartbeat::Heartbeat(int rank, int size, std::shared_ptr<Store> store, HeartbeatOptions options)
    : state_(std::make_shared<State>()) {
  state_->rank = rank;
  state_->size = size;
  state_->store = std::move(store);
  state_->options = std::move(options);
  try {
    // Before the thread starts: rank 0, which serves the store, may hang from any moment on.
    state_->FindLimit();
  } catch (const Error&) {
    // The thread finds out who is lost.
  }
  // The thread may hang in the store if rank 0 does, so nobody waits for it.
  std::thread([state = state_] { state->Run(); }).detach();
  std::thread([state = state_] { state->TimeCalls(); }).detach();
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
