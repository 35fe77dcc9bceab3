// Finds out, through the store, why the ranks of a group can't go on, so that all say the same and
// name the rank that is to blame.
//
//   watch.Run("all_reduce", [&] { ... });  // what it throws becomes Unavailable, naming the
//   culprit
//
// and, inside of a wait for other ranks that no other event ends: `watch.LookAround()`.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lathe/core/error.h"
#include "lathe/distributed/liveness/life_signs.h"
#include "lathe/distributed/rendezvous/store.h"

namespace lathe {

// What a runtime_error says, thrown inside Run where the ranks' calls have been compared; where
// they are of one kind, they differ in how much is given.
inline constexpr char kOtherSize[] = "the ranks' calls don't match: they give different sizes";

// Thrown inside Run by a rank that itself is the reason: its device failed.
class OwnFault : public std::runtime_error {
  using runtime_error::runtime_error;
};

class PeerWatch {
 public:
  // `server` is rank 0's and lives as long as the watch.
  PeerWatch(int rank, int size, std::shared_ptr<StoreServer> server, std::shared_ptr<Store> store);

  // Tells the others that this rank has done its part. That of rank 0 waits until all have, or have
  // ended, for LookAfter's timeout at most (without: SetGoodbyePatience, or 10
  // minutes), and says on standard error if one has not.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // One call at a time. If `body` throws, the group is broken: this and all later calls throw
  // Unavailable with what the ranks have agreed on.
  void Run(const char* what, const std::function<void()>& body);

  // For waits inside of Run. Throws if a rank has gone, or has been silent for too long.
  void CheckAllLive();
  // Throws, too, if another rank has found that something is wrong, and what `elsewhere` throws.
  void LookAround();
  // Another watch over the same ranks, say, that knows more.
  void SetElsewhere(std::function<void()> elsewhere) { elsewhere_ = std::move(elsewhere); }

  // Every rank's `mine`, in the order of ranks. Inside of Run.
  std::vector<std::string> Exchange(const std::string& key, const std::string& mine,
                                    std::chrono::milliseconds timeout);

  // The last words of a rank that gives up together with all others, so that none is missed.
  void Part() { Part(""); }

  // From now on ranks that end or hang are found outside of Run, too. store: a connection for that
  // alone. on_loss: as LifeSigns's.
  void LookAfter(std::shared_ptr<Store> store, std::chrono::milliseconds timeout,
                 std::function<void()> on_loss = nullptr);

  // Whether a process with this rank was in a group of this store and has gone.
  static bool HasGone(Store& store, int rank);

  // How long rank 0's goodbye waits, without LookAfter.
  void SetGoodbyePatience(std::chrono::milliseconds patience) { patience_ = patience; }

  // As ProcessGroup's.
  void CheckPeers();
  void SetAlarm(const std::function<void(const Error&)>& alarm);
  void Abandon();
  void SetPhase(const std::string& phase);
  void Post(const std::string& key, const std::string& value);
  std::string Await(const std::string& key, int from);
  std::optional<std::string> Find(const std::string& key, std::chrono::milliseconds time);

  // Of the store: what is wrong, in the words of who found out first, and a rank that has done all
  // its part.
  static constexpr char kBlame[] = "blame", kLeft[] = "left";

  // Of the store, but for half a second at most once this rank has given up.
  void SetPatience(std::chrono::milliseconds patience);
  Store& store() { return *store_; }
  int size() const { return size_; }

 private:
  void SayGoodbye();
  Error Failure(const char* what, const std::string& problem) const;
  std::string AgreeOnProblem(const char* what, const std::string& said, bool own_fault);
  std::string FindCulprit(const char* what, const std::string& said);
  std::string PhaseOf(const std::string& name);
  std::string ProblemOfStore(const Error& e) const;
  std::string Ended(std::chrono::milliseconds wait = {});
  std::string Loss() const;
  void Part(const std::string& blame);

  const int rank_, size_;
  std::mutex mutex_;
  std::string problem_;  // that broke the group; "" while it is whole
  std::atomic<bool> abandoned_ = false;
  mutable std::mutex phase_mutex_;
  std::string phase_;  // this rank's
  std::function<void()> elsewhere_;
  // In this order: this rank's goodbye, then the server.
  std::shared_ptr<StoreServer> server_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<LifeSigns> life_;                                // null: none
  std::chrono::milliseconds patience_ = std::chrono::minutes(10);  // of rank 0's goodbye
};

// How long to go on polling for something that needs the other ranks. Inside of Run.
class PeerPatience {
 public:
  PeerPatience(PeerWatch& watch, std::chrono::milliseconds timeout);
  // Between two polls: spins at first, then sleeps. Throws when the time is up, and half a second
  // after another rank has gone or found that something is wrong.
  void Pause();

 private:
  using Clock = std::chrono::steady_clock;
  PeerWatch& watch_;
  const std::chrono::milliseconds look_interval_;
  const Clock::time_point start_;
  Clock::time_point deadline_, next_look_;
  std::exception_ptr trouble_;
};

}  // namespace lathe
