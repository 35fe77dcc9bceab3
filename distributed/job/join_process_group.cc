#include "lathe/distributed/job/join_process_group.h"

#include <absl/status/status.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/distributed/groups/gloo_group.h"
#include "lathe/distributed/groups/nccl/nccl_group.h"
#include "lathe/distributed/liveness/lost_ranks.h"
#include "lathe/distributed/liveness/peer_watch.h"
#include "lathe/distributed/liveness/who_reports.h"
#include "lathe/distributed/rendezvous/machine.h"
#include "lathe/distributed/rendezvous/network.h"
#include "lathe/distributed/rendezvous/rank_names.h"
#include "lathe/distributed/rendezvous/socket.h"
#include "lathe/distributed/rendezvous/store.h"
#include "lathe/distributed/rendezvous/wait_time.h"

namespace lathe {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr Milliseconds kMoment(500), kAtOnce(0);
constexpr char kJoined[] = "joined";  // a rank sets it to the size of its job
constexpr char kJoining[] = "joining",
               kJoiningHint[] = "look at what that rank printed last, and start all ranks again";
// Keys by which a rank tells that another one of its machine has ended, or that a rank has joined
// twice. The values are names of ranks.
constexpr char kEndedElsewhere[] = "ended elsewhere", kTwice[] = "joined twice";

GroupProblem EndedBeforeJoining(int rank) {
  GroupProblem problem = EndedRankProblem(rank, "");
  problem.text += " before all had joined";
  problem.lost->phase = kJoining;
  return problem;
}

// Prints a note, once, after ten seconds, for a user who waits for a machine that nobody started.
class WaitingNote {
 public:
  explicit WaitingNote(Milliseconds timeout) : timeout_(timeout) {}
  void Tell(const std::string& what) {
    if (Clock::now() < at_) return;
    at_ = Clock::time_point::max();
    std::cerr << "note: waiting for " + what + ", for " + SecondsText(timeout_) + " in all\n"
              << std::flush;
  }

 private:
  const Milliseconds timeout_;
  Clock::time_point at_ = Clock::now() + std::chrono::seconds(10);
};

// Returns the problem if one of the ranks has joined a job of another size; else an empty one.
GroupProblem CheckSizes(Store& store, const std::vector<int>& ranks, int world_size) {
  const auto sizes = store.GetSeveral(RankKeys(kJoined, ranks), kAtOnce);
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (sizes[i] == std::to_string(world_size)) continue;
    return {.text = RankName(ranks[i]) + " belongs to a job of " + sizes[i].value_or("no") +
                    " processes but rank 0 to one of " + std::to_string(world_size)};
  }
  return {};
}

// Returns the problem if a rank has ended before all have joined; else an empty one.
GroupProblem FindEndedRank(Store& store, const ProcessEnvironment& env) {
  const auto ended = store.GetSeveral({Store::kGone, kEndedElsewhere}, kAtOnce);
  if (ended[0]) return EndedBeforeJoining(RankOfName(*ended[0]));
  if (const auto rank = FindFirstEndedRank(env)) return EndedBeforeJoining(*rank);
  return ended[1] ? EndedBeforeJoining(RankOfName(*ended[1])) : GroupProblem{};
}

// Returns what is wrong with the ranks, for all of them to hear; empty if all have joined.
GroupProblem AwaitAllRanks(Store& store, const ProcessEnvironment& env, Milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  WaitingNote note(timeout);
  std::vector<int> late = RanksBetween(0, env.world_size);
  for (bool time_is_left = true; time_is_left;) {
    time_is_left = TimeLeft(deadline) > Milliseconds(0);
    std::vector<int> still_late =
        AwaitRanks(store, kJoined, late, std::min(kMoment, TimeLeft(deadline)));
    std::vector<int> fresh;
    std::ranges::set_difference(late, still_late, std::back_inserter(fresh));
    if (GroupProblem problem = CheckSizes(store, fresh, env.world_size); !problem.empty())
      return problem;
    late = std::move(still_late);
    if (late.empty()) return {};
    if (GroupProblem ended = FindEndedRank(store, env); !ended.empty()) return ended;
    note.Tell(RankNames(late) + " to join at " + AddressText(env.master_addr, env.master_port));
  }
  const auto twice = store.Get(kTwice, kAtOnce);
  return {.text = (twice ? *twice + " has joined twice, and " : "") + RankNames(late) +
                  " did not join within " + SecondsText(timeout)};
}

// The store ends with rank 0, so rank 0 stays until all that have joined have heard why they must.
void ConfirmVerdict(Store& store, const ProcessEnvironment& env) try {
  store.Set(RankKey("heard", env.rank), "");
  if (env.rank != 0) return;
  std::vector<int> left = RanksBetween(1, env.world_size);
  std::vector<int> absent = AwaitRanks(store, kJoined, left, kAtOnce);
  std::ranges::copy(PeerWatch::FindGone(store, left), std::back_inserter(absent));
  std::erase_if(left, [&](int rank) { return std::ranges::count(absent, rank) > 0; });
  AwaitRanks(store, "heard", left, std::chrono::seconds(1));
} catch (const Error&) {
  // Rank 0 has heard it and gone before it answered.
}

// Returns what rank 0 has found wrong; empty if all is well.
GroupProblem AwaitVerdict(Store& store, const ProcessEnvironment& env, Milliseconds timeout) try {
  store.Set(RankKey(kJoined, env.rank), std::to_string(env.world_size));
  constexpr char kVerdict[] = "verdict";
  if (env.rank == 0) store.Set(kVerdict, Serialize(AwaitAllRanks(store, env, timeout)));
  // Rank 0 waits for the same time, and then needs a moment to find out.
  const Clock::time_point deadline = Clock::now() + timeout + std::chrono::seconds(10);
  do {
    if (const auto verdict = store.Get(kVerdict, std::min(kMoment, TimeLeft(deadline))))
      return ParseGroupProblem(*verdict);
    if (const auto ended = FindFirstEndedRank(env)) store.Set(kEndedElsewhere, RankName(*ended));
  } while (TimeLeft(deadline) > Milliseconds(0));
  return {.text = "rank 0 did not say within " + SecondsText(timeout) +
                  " whether all ranks have joined"};
} catch (const Error& e) {
  if (e.code() != absl::StatusCode::kUnavailable) throw;
  // Whatever ended rank 0 may be about to end this rank, too, which then has nothing to report.
  std::this_thread::sleep_for(Milliseconds(100));
  return EndedBeforeJoining(0);
}

// Registers this rank in the store. Returns false if the store is that of an earlier program in the
// same script. The rank 0 of that program still runs, or it has just ended. If it still runs,
// `before` is set, and the store is left again.
bool RegisterRank(Store& store, const ProcessEnvironment& env, bool& before) try {
  if (store.Add(RankKey("joins", env.rank), 1) == 1) return true;
  if (!PeerWatch::FindGone(store, {env.rank}).empty()) {
    before = true;
    store.Leave();
    return false;
  }
  // The process that joined first may be in the midst of a job.
  store.Leave({{kTwice, RankName(env.rank)}});
  throw Error(absl::StatusCode::kFailedPrecondition, RankName(env.rank) + " has joined twice",
              "give each process a RANK of its own, or start only one job at a time at this port");
} catch (const Error& e) {
  if (e.code() != absl::StatusCode::kUnavailable) throw;
  return false;
}

std::shared_ptr<Store> FindStore(const std::string& host, int port, const std::string& job,
                                 const ProcessEnvironment& env, Milliseconds timeout) {
  constexpr Milliseconds kPause(50);
  const Clock::time_point deadline = Clock::now() + timeout;
  const std::string where = AddressText(host, port);
  WaitingNote note(timeout);
  bool before = false;
  const auto check = [&] {
    if (const auto ended = FindFirstEndedRank(env))
      throw CannotGoOnError(kJoining, env.rank, EndedBeforeJoining(*ended), kJoiningHint);
    if (env.local_rank == 0)
      note.Tell((before ? "rank 0 of the program before to end at " : "rank 0 to answer at ") +
                where);
  };
  for (Milliseconds time = timeout;; time = std::max(TimeLeft(deadline), Milliseconds(1000))) {
    auto store = std::make_shared<Store>(host, port, job, time, RankName(env.rank), check);
    // Rank 0 may also hang after it has greeted.
    store->SetPatience(std::min<Milliseconds>(std::chrono::seconds(30), timeout));
    if (RegisterRank(*store, env, before)) return store;
    if (TimeLeft(deadline) < kPause) break;
    std::this_thread::sleep_for(kPause);
    check();
  }
  throw Error(absl::StatusCode::kUnavailable,
              (before ? "rank 0 of the program that ran before at " + where + " did not end within "
                      : where + ": rank 0 has ended, and no other rank 0 came within ") +
                  SecondsText(timeout),
              std::string("look at what rank 0 ") +
                  (before ? "of that program does" : "printed last") +
                  ", or choose another port with MASTER_PORT");
}

// Tells all ranks how long one of them may give no sign of life.
void SetHeartbeatLimit(Store& store, const ProcessGroupOptions& options) {
  constexpr std::chrono::seconds kUsual(30);
  const Milliseconds limit = options.heartbeat_timeout > Milliseconds(0)
                                 ? options.heartbeat_timeout
                                 : std::min<Milliseconds>(kUsual, options.timeout);
  store.Set(PeerWatch::kHeartbeatLimit, std::to_string(limit.count()));
}

// The group of a job of one rank. Its collectives copy at most.
class SingleGroup : public ProcessGroup {
 public:
  SingleGroup() : ProcessGroup(0, 1) {}
  void AllReduce(std::span<float>, ReduceOp) override {}
  void AllReduce(std::span<double>, ReduceOp) override {}
  void AllReduce(std::span<int64_t>, ReduceOp) override {}
  void AllGather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    CheckGatherSizes(mine, all);
    std::copy(mine.begin(), mine.end(), all.begin());
  }
  void Broadcast(std::span<std::byte>, int root) override { CheckRoot(root); }
  void Barrier() override {}
  void SetPhase(const std::string&) override {}
  void PostMessage(const std::string& key, const std::string& value) override {
    messages_[key] = value;
  }
  std::string AwaitMessage(const std::string& key, int /*from*/) override {
    Check(messages_.contains(key), "await", "there is no other rank that could post \"", key, "\"");
    return messages_.at(key);
  }
  std::optional<std::string> FindMessage(const std::string& key,
                                         std::chrono::milliseconds) override {
    if (!messages_.contains(key)) return std::nullopt;
    return messages_.at(key);
  }

 private:
  std::map<std::string, std::string> messages_;
};

}  // namespace

std::shared_ptr<ProcessGroup> JoinProcessGroup(const ProcessEnvironment& env,
                                               const ProcessGroupOptions& options) {
  Check(env.world_size >= 1 && env.rank >= 0 && env.rank < env.world_size, "process_group",
        "expected a rank from 0 to ", env.world_size - 1, " but got ", env.rank);
  const bool nccl = options.backend == "nccl";
  Check(nccl || options.backend == "gloo", "process_group", "backend \"", options.backend,
        "\" is neither gloo nor nccl");
  if (nccl) RequireNccl();
  const bool alone = env.world_size == 1;
  if (alone && !nccl) return std::make_shared<SingleGroup>();
  RequireOpenFiles(env.rank, env.world_size);
  // A single process need not be found by others, and its port may be another job's.
  const std::string host = alone ? "127.0.0.1" : env.master_addr;
  int port = alone ? 0 : env.master_port;
  const std::string job = "lathe 1 " + env.job;
  if (!alone) {  // mistakes are found before the ranks join
    SocketInterfaceAddress(/*prefers_ipv6=*/false);
    ReadPortRange();
  }
  std::shared_ptr<StoreServer> server;
  if (env.rank == 0) {
    server = std::make_shared<StoreServer>(host, port, job);
    port = server->port();
  }
  auto store = FindStore(host, port, job, env, options.timeout);
  if (env.rank == 0) SetHeartbeatLimit(*store, options);
  if (const GroupProblem problem = AwaitVerdict(*store, env, options.timeout); !problem.empty()) {
    ConfirmVerdict(*store, env);
    if (problem.lost) throw CannotGoOnError(kJoining, env.rank, problem, kJoiningHint);
    throw Error(
        absl::StatusCode::kUnavailable, problem.text,
        "start all processes of the job with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
  }
  if (nccl) {
    return RequireNccl().make(env.rank, env.world_size, env.local_rank, std::move(server),
                              std::move(store), options.timeout);
  }
  auto life = std::make_shared<Store>(host, port, job, options.timeout);
  return MakeGlooGroup(env, std::move(server), std::move(store), std::move(life), options.timeout);
}

}  // namespace lathe
