// Finds out, through the store, why the ranks of a group can't go on. All ranks then say the same
// and name the rank that is to blame.
//
//   watch.Run("all_reduce", [&] { ... });  // turns exceptions into Unavailable, naming the culprit
//
// A wait for other ranks inside of Run that no other event ends calls `watch.CheckForProblems()`.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/distributed/liveness/lost_ranks.h"
#include "lathe/distributed/rendezvous/store.h"

namespace lathe {

// Thrown inside Run when a comparison shows that the ranks' calls differ. If all ranks make the
// same kind of call, Run reports this error, which tells how their sizes differ. Otherwise Run
// reports the kinds.
class CallsDiffer : public std::runtime_error {
 public:
  explicit CallsDiffer(const std::string& what)
      : runtime_error("the ranks' calls don't match: they give different " + what) {}
};

// Thrown inside Run by a rank that is the cause itself: its device failed.
class OwnFault : public std::runtime_error {
  using runtime_error::runtime_error;
};

class PeerWatch {
 public:
  // `server` is rank 0's and lives as long as the watch.
  PeerWatch(int rank, int size, std::shared_ptr<StoreServer> server, std::shared_ptr<Store> store);

  // Tells the others that this rank's work is done. Rank 0 then waits until all others have said so
  // or have ended, as its store goes with it. It waits at most for StartHeartbeat's timeout or,
  // without StartHeartbeat, for SetGoodbyePatience's (10 minutes by default). It says on standard
  // error if a rank has not ended by then.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // Runs `body`; one call at a time. `what` names the call, as "all_reduce", and lives for ever. If
  // `body` throws, the group is broken: this and all later calls throw Unavailable with what the
  // ranks have agreed on.
  void Run(const char* what, const std::function<void()>& body);

  // For waits inside of Run. Throws if a rank has gone, or has been silent for too long.
  void CheckAllLive();
  // Does the same. It also throws if another rank has found that something is wrong, or if the
  // check of SetExtraCheck throws.
  void CheckForProblems();
  // Makes CheckForProblems call `check`, too, such as CheckPeers of another group of the same
  // ranks.
  void SetExtraCheck(std::function<void()> check) { extra_check_ = std::move(check); }

  // Calls `is_done` until it returns true. Spins at first, then sleeps between two calls. Throws
  // when the time is up, and half a second after another rank has gone or found that something is
  // wrong. For use inside of Run.
  void PollUntil(std::chrono::milliseconds timeout, const std::function<bool()>& is_done);

  // Returns what each rank has passed as `mine`, up to 4,000 bytes, in the order of ranks. For use
  // inside of Run.
  std::vector<std::string> Exchange(const std::string& key, const std::string& mine,
                                    std::chrono::milliseconds timeout);

  // Says goodbye for a rank that gives up together with all others, so that none is missed. Rank 0
  // waits until the others have said so, too, but for those that are lost.
  void LeaveTogether(const GroupProblem& problem = {});

  // From now on ranks that end or hang are found outside of Run, too. `store` is a connection for
  // this purpose alone. A call of Run may last for `timeout` as a whole, but for times in which
  // this process was stopped: at most a second of each counts. A rank may leave no sign of life for
  // the job's own limit (kHeartbeatLimit in the store), or else for `timeout`. Another thread calls
  // `on_lost_rank` a moment after it has found a lost rank, or once a call has lasted too long,
  // perhaps when the watch is no more. It then has to end the waits of the call.
  void StartHeartbeat(
      std::shared_ptr<Store> store, std::chrono::milliseconds timeout,
      std::function<void()> on_lost_rank = [] {});

  // Returns those of the ranks that were in a group of this store and have gone, in their order.
  static std::vector<int> FindGone(Store& store, const std::vector<int>& ranks);

  // Sets how long rank 0's goodbye waits, without StartHeartbeat.
  void SetGoodbyePatience(std::chrono::milliseconds patience) { patience_ = patience; }

  // These do what ProcessGroup's do. SetAlarm returns when no alarm is being called.
  void CheckPeers();
  void SetAlarm(std::function<void(const Error&)> alarm);
  void Abandon();
  void SetPhase(const std::string& phase);
  void PostMessage(const std::string& key, const std::string& value);
  std::string AwaitMessage(const std::string& key, int from);
  std::optional<std::string> FindMessage(const std::string& key, std::chrono::milliseconds time);

  // The key in the store for the job's limit, in milliseconds: what rank 0 has set before
  // StartHeartbeat goes for all ranks.
  static constexpr char kHeartbeatLimit[] = "heartbeat limit";

  // Sets the store's patience; half a second at most once this rank has given up.
  void SetPatience(std::chrono::milliseconds patience);
  Store& store() { return *store_; }

 private:
  // The time for an answer that comes at once, unless the store or a rank is lost.
  static constexpr std::chrono::milliseconds kMoment{500};

  struct Heartbeat;  // see heartbeat.cc
  // The call that this rank is in and that needs the other ranks, for the heartbeat's threads.
  struct CurrentCall {
    std::atomic<const char*> what = nullptr;  // as Run's; null outside of calls
    std::atomic<int64_t> number = 0;          // another one for each call
  };

  // Keys of the store. kProblem holds what is wrong: the GroupProblem of the rank that noticed it
  // first. kSilent holds the one of a rank whose sign of life is missed. kFinishedRank holds the
  // name of a rank whose work is done. kPhase, followed by a rank's number, holds what that rank is
  // doing. A rank sets kTrouble before it looks for the culprit, and kWaitsIn, followed by its
  // number, to the call in which it waits.
  static constexpr char kProblem[] = "problem", kSilent[] = "silent", kFinishedRank[] = "finished",
                        kPhase[] = "phase", kTrouble[] = "trouble", kWaitsIn[] = "waits";

  void StopHeartbeat();
  void SayGoodbye();
  GroupProblem AgreeOnProblem(const char* what, const GroupProblem& noticed);
  GroupProblem FindCulprit(const char* what, const GroupProblem& noticed);
  GroupProblem HangingRanks(const std::vector<int>& ranks);
  static std::string PhaseOf(Store& store, int rank);
  static GroupProblem ProblemOfEnded(Store& store, const std::string& name);
  GroupProblem ProblemOfStore(const Error& e) const;
  std::optional<std::string> FindEndedPeer(std::chrono::milliseconds wait = {});
  GroupProblem FindLostRank() const;

  const int rank_, size_;
  // How long the ranks have to say that they wait for others. The heartbeat's thread of a rank that
  // waits answers for it, in one of its rounds.
  const std::chrono::milliseconds time_to_answer_ =
      std::max(2 * kMoment, std::chrono::milliseconds(2 * size_));
  std::mutex mutex_;
  GroupProblem problem_;  // what broke the group; empty while it is whole
  std::atomic<bool> abandoned_ = false;
  mutable std::mutex phase_mutex_;
  std::string phase_;  // this rank's
  std::function<void()> extra_check_;
  const std::shared_ptr<CurrentCall> call_ = std::make_shared<CurrentCall>();
  // In this order, so that this rank's connection closes before the server ends.
  std::shared_ptr<StoreServer> server_;
  std::shared_ptr<Store> store_;
  std::shared_ptr<Heartbeat> life_;                                // null without StartHeartbeat
  std::chrono::milliseconds patience_ = std::chrono::minutes(10);  // of rank 0's goodbye
};

}  // namespace lathe
