#include "lathe/distributed/liveness/life_signs.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "lathe/core/error.h"
#include "lathe/distributed/liveness/peer_watch.h"

namespace lathe {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kAtOnce{0}, kBeforeLoss{200}, kBeforeAlarm{1000};

std::string Key(const char* what, int rank) {
  return std::string(what) + "/" + std::to_string(rank);
}

}  // namespace

struct LifeSigns::State {
  int rank, size;
  std::shared_ptr<Store> store;
  Milliseconds interval;
  int64_t rounds;  // the number of rounds for which the next rank may be silent

  mutable std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
  std::string loss;
  std::function<void(bool rank_0)> on_loss;
  std::mutex alarm_mutex;
  std::function<void(const std::string&)> alarm;

  // Waits for `time`, and returns true at once when the thread is to end.
  bool Pause(Milliseconds time) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, time, [this] { return stopped; });
  }

  std::string WithPhase(const std::string& name, const std::string& what) const {
    const auto phase = store->Get("phase/" + name, kAtOnce);
    return name + what + (phase ? " while " + *phase : "");
  }

  // Leaves a sign and returns what is known of a lost rank; "" if there is none. Sets `over` if a
  // rank has left because its work is done.
  std::string Look(int64_t& sign, int64_t& missed, std::string& last, bool& over) const {
    store->Set(Key("sign", rank), std::to_string(++sign));
    if (const auto silent = store->Get(kSilent, kAtOnce)) return *silent;
    if (const auto blame = store->Get(PeerWatch::kBlame, kAtOnce)) return *blame;
    over = store->Get(PeerWatch::kLeft, kAtOnce).has_value();
    if (over) return "";
    if (const auto gone = store->Get(Store::kGone, kAtOnce)) return WithPhase(*gone, " has ended");
    const int neighbour = (rank + 1) % size;
    std::string now = store->Get(Key("sign", neighbour), kAtOnce).value_or("");
    if (std::exchange(last, std::move(now)) != last) missed = 0;
    if (++missed <= rounds) return "";
    const std::string silent = WithPhase("rank " + std::to_string(neighbour), " does not answer");
    store->Set(kSilent, silent);
    return silent;
  }

  void Run() {
    int64_t sign = 0, missed = 0;
    std::string last, found;
    bool over = false, rank_0 = false;
    while (found.empty() && !over) {
      if (Pause(interval)) return;
      try {
        found = Look(sign, missed, last, over);
      } catch (const Error& e) {
        const bool hangs = e.code() == absl::StatusCode::kDeadlineExceeded;
        found = hangs ? "rank 0 does not answer" : "rank 0 has ended";
        rank_0 = true;
      }
    }
    if (over) return;
    {
      const std::lock_guard lock(mutex);
      loss = found;
    }
    if (Pause(kBeforeLoss)) return;
    if (on_loss) on_loss(rank_0);
    while (!Pause(kBeforeAlarm)) {
      const std::lock_guard lock(alarm_mutex);
      if (alarm) std::exchange(alarm, nullptr)(found);
    }
  }
};

LifeSigns::LifeSigns(int rank, int size, std::shared_ptr<Store> store, Milliseconds timeout,
                     std::function<void(bool rank_0)> on_loss)
    : state_(std::make_shared<State>()) {
  state_->on_loss = std::move(on_loss);
  state_->rank = rank;
  state_->size = size;
  state_->store = std::move(store);
  state_->interval = std::clamp(timeout / 16, Milliseconds(100), Milliseconds(500));
  state_->rounds = (timeout + state_->interval - Milliseconds(1)) / state_->interval;
  state_->store->SetPatience(std::max(timeout, Milliseconds(500)));
  // The thread may hang in the store if rank 0 does, so nobody waits for it.
  std::thread([state = state_] { state->Run(); }).detach();
}

LifeSigns::~LifeSigns() {
  SetAlarm(nullptr);
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopped = true;
  }
  state_->changed.notify_all();
}

std::string LifeSigns::Loss() const {
  const std::lock_guard lock(state_->mutex);
  return state_->loss;
}

void LifeSigns::SetAlarm(std::function<void(const std::string&)> alarm) {
  const std::lock_guard lock(state_->alarm_mutex);
  state_->alarm = std::move(alarm);
}

}  // namespace lathe
