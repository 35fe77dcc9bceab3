// Tests what an NcclGroup does around NCCL: stages, waits, errors, and its end. The device and NCCL
// are fakes.
#include <absl/status/status.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <functional>
#include <thread>

#include "lathe/core/base/error.h"
#include "lathe/distributed/groups/nccl/fake_nccl.h"
#include "lathe/distributed/groups/nccl/nccl_group.h"
#include "lathe/distributed/rendezvous/store_protocol.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Joins as rank `rank` of `size`. The other ranks have come, but do nothing from then on.
std::shared_ptr<NcclGroup> JoinGhosts(const ProcessEnvironment& env, int rank, int size,
                                      milliseconds timeout = seconds(1)) {
  const auto [server, store] = OpenStore(env);
  std::string id("an id");
  id.resize(sizeof(ncclUniqueId));
  std::string devices, ids;
  for (int other = 0; other < size; ++other) {
    const std::string number = std::to_string(other);
    const std::string device = Serialize({.uuid = "ghost " + number, .visible = 1});
    store->Set("nccl_device/" + number, device);
    store->Set("nccl_id/" + number, id);
    store_protocol::AppendText(devices, device);
    store_protocol::AppendText(ids, id);
  }
  if (rank != 0) {  // rank 0 also puts the values of all under one key (PeerWatch::Exchange)
    store->Set("block of nccl_device/0", devices);
    store->Set("block of nccl_id/0", ids);
  }
  return RequireNccl().make(rank, size, 0, server, store, timeout);
}

RankResult InProcess(const std::function<std::string(const ProcessEnvironment&)>& body) {
  return RunRanks(1, body)[0];
}

// Returns the message of what `body` throws.
std::string Said(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), absl::StatusCode::kUnavailable);
    return e.message();
  }
  return "";
}

void ExpectWell(const RankResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.said;
  EXPECT_EQ(result.said, "");
}

TEST(NcclGroupLogic, StagesWholeArrays) {
  for (const int polls : {0, 30}) {
    ExpectWell(InProcess([polls](const ProcessEnvironment& env) {
      Fake().polls_to_settle = polls;
      auto group = JoinGhosts(env, 1, 3);
      std::vector<float> floats(5000011);  // more than a stage holds
      for (size_t i = 0; i < floats.size(); ++i) floats[i] = static_cast<float>(i % 1000);
      group->AllReduce(floats);
      size_t wrong = 0;
      for (size_t i = 0; i < floats.size(); ++i) {
        wrong += floats[i] != 3 * static_cast<float>(i % 1000);
      }
      EXPECT_EQ(wrong, 0u);
      std::vector<double> doubles = {0.5, -1};
      group->AllReduce(doubles, ReduceOp::kMax);
      EXPECT_EQ(doubles, (std::vector<double>{0.5, -1}));
      std::vector<int64_t> whole = {int64_t{1} << 40};
      group->AllReduce(whole);
      EXPECT_EQ(whole, (std::vector<int64_t>{int64_t{3} << 40}));
      EXPECT_NE(group->stream(), nullptr);
      group->Order(nullptr, group->stream());
      std::vector<float> on_device = {0.5, -1};
      group->AllReduceDevice(on_device.data(), 1, ReduceOp::kSum, nullptr);
      group->WaitFor(nullptr);
      EXPECT_EQ(on_device, (std::vector<float>{1.5, -1}));

      std::vector<int32_t> part(3000017), all(3 * part.size());
      for (size_t i = 0; i < part.size(); ++i) part[i] = static_cast<int32_t>(i);
      group->AllGather(std::as_bytes(std::span(part)), std::as_writable_bytes(std::span(all)));
      wrong = 0;
      for (size_t i = 0; i < all.size(); ++i) wrong += all[i] != part[i % part.size()];
      EXPECT_EQ(wrong, 0u);
      const std::vector<int32_t> before = part;
      group->Broadcast(std::as_writable_bytes(std::span(part)), 2);
      EXPECT_EQ(part, before);
      group->Barrier();
      const int calls = Fake().collectives;
      EXPECT_THROW(group->Broadcast({}, 3), Error);
      EXPECT_THROW(group->AllGather(std::as_bytes(std::span(part)), {}), Error);
      group->AllReduce(std::span<float>());
      EXPECT_EQ(Fake().collectives, calls);

      group.reset();
      EXPECT_EQ(Fake().finalized, 1);
      EXPECT_EQ(Fake().destroyed, 1);
      EXPECT_EQ(Fake().aborted, 0);
      EXPECT_EQ(Fake().live_handles, 0);
      return std::string();
    }));
  }
}

TEST(NcclGroupLogic, AnInitThatHangsIsAborted) {
  const RankResult result = InProcess([](const ProcessEnvironment& env) {
    Fake().polls_to_settle = 1 << 30;
    const std::string said = Said([&] { JoinGhosts(env, 0, 2); });
    EXPECT_EQ(Fake().aborted, 1);
    EXPECT_EQ(Fake().live_handles, 0);
    return said;
  });
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.said, "[connecting] rank 0 can't go on: rank 1 does not answer");
  EXPECT_LT(result.seconds, 8);
}

TEST(NcclGroupLogic, ACollectiveThatHangsIsAborted) {
  ExpectWell(InProcess([](const ProcessEnvironment& env) {
    auto group = JoinGhosts(env, 0, 2);
    Fake().collectives_hang = true;
    std::vector<float> data(10);
    const std::string problem = " rank 0 can't go on: rank 1 does not answer";
    EXPECT_EQ(Said([&] { group->AllReduce(data); }), "[all_reduce]" + problem);
    EXPECT_EQ(Fake().aborted, 1);
    // The group stays broken, and says so without a call of NCCL.
    EXPECT_EQ(Said([&] { group->Barrier(); }), "[barrier]" + problem);
    EXPECT_EQ(Said([&] { group->AllReduceDevice(data.data(), 10, ReduceOp::kSum, nullptr); }),
              "[all_reduce]" + problem);
    EXPECT_EQ(Said([&] { group->WaitFor(nullptr); }), "[all_reduce]" + problem);
    // The next kernel launch must not find the error that the polls got.
    EXPECT_EQ(Fake().last_error, cudaSuccess);
    EXPECT_EQ(Fake().collectives, 1);
    group.reset();
    EXPECT_EQ(Fake().aborted, 1);
    EXPECT_EQ(Fake().finalized, 0);
    EXPECT_EQ(Fake().live_handles, 0);
    return std::string();
  }));
}

TEST(NcclGroupLogic, AnAbortThatHangsHoldsNoErrorBack) {
  const RankResult result = InProcess([](const ProcessEnvironment& env) {
    auto group = JoinGhosts(env, 0, 2);
    Fake().collectives_hang = Fake().abort_hangs = true;
    const std::string said = Said([&] { group->Barrier(); });
    group.reset();
    EXPECT_EQ(Fake().live_handles, 5);  // the device may still use them, so nobody frees them
    return said;
  });
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.said, "[barrier] rank 0 can't go on: rank 1 does not answer");
  EXPECT_LT(result.seconds, 25);
}

TEST(NcclGroupLogic, WhatNcclReportsIsTheRanksOwnFaultOrNot) {
  for (const auto& [error, said] : {std::pair(ncclInternalError, "rank 0: NCCL: internal error"),
                                    std::pair(ncclRemoteError, "rank 1 does not answer")}) {
    const RankResult result = InProcess([error = error](const ProcessEnvironment& env) {
      auto group = JoinGhosts(env, 0, 2, seconds(30));
      Fake().error = error;
      group->Barrier();
      return std::string();
    });
    EXPECT_EQ(result.said, std::string("[barrier] rank 0 can't go on: ") + said);
    EXPECT_LT(result.seconds, 10);
  }
}

// Joins as one of 3 ranks that all do their part.
std::shared_ptr<NcclGroup> JoinOthers(const ProcessEnvironment& env) {
  const auto [server, store] = OpenStore(env);
  return RequireNccl().make(env.rank, env.world_size, env.local_rank, server, store, seconds(30));
}

// Calls `fault` on rank `victim` once all ranks are connected. The others wait in a collective.
std::vector<RankResult> WithFault(int victim, const std::function<void(NcclGroup&)>& fault) {
  return RunRanks(3, [=](const ProcessEnvironment& env) {
    Fake().devices = 3;
    const auto group = JoinOthers(env);
    EXPECT_EQ(group->device(), env.rank);
    group->SetPhase("testing");
    group->PostMessage("here " + std::to_string(env.rank), "");
    for (int rank = 0; rank < 3; ++rank) group->AwaitMessage("here " + std::to_string(rank), rank);
    Fake().collectives_hang = true;
    if (env.rank == victim) {
      std::this_thread::sleep_for(milliseconds(300));  // until the others wait
      fault(*group);
    }
    group->Barrier();
    return std::string();
  });
}

TEST(NcclGroupLogic, ADeadRankIsNamedLongBeforeTheTimeout) {
  for (const int victim : {0, 2}) {
    const auto results = WithFault(victim, [](NcclGroup&) { raise(SIGKILL); });
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      const std::string phase = victim == 0 ? "; this rank was testing" : " while testing";
      EXPECT_EQ(results[rank].said, "[barrier] rank " + std::to_string(rank) +
                                        " can't go on: rank " + std::to_string(victim) +
                                        " has ended" + phase);
      EXPECT_LT(results[rank].seconds, 15);
    }
  }
}

TEST(NcclGroupLogic, ARankWhoseDeviceFailsIsNamedLongBeforeTheTimeout) {
  const auto results = WithFault(1, [](NcclGroup& group) {
    Fake().devices = 0;  // the device fell off the bus
    group.Barrier();
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(results[rank].said, "[barrier] rank " + std::to_string(rank) +
                                      " can't go on: rank 1: cudaSetDevice: another error");
    EXPECT_LT(results[rank].seconds, 15);
  }
}

// `prepare` sets what a rank has. All ranks end with the same error.
void ExpectRefusal(const std::function<void(int rank)>& prepare, const std::string& end) {
  const auto results = RunRanks(3, [&](const ProcessEnvironment& env) {
    Fake().devices = 3;
    prepare(env.rank);
    JoinOthers(env);
    return std::string();
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_TRUE(result.said.ends_with(end)) << result.said;
    EXPECT_LT(result.seconds, 15);
  }
}

TEST(NcclGroupLogic, WhatOneRankLacksAllRanksSay) {
  ExpectRefusal([](int rank) { Fake().library_is_missing = rank == 1; },
                "): NCCL can't be used: missing");
  ExpectRefusal([](int rank) { Fake().devices = rank == 2 ? 0 : 3; },
                "): no CUDA device: the driver shows none");
  ExpectRefusal([](int) { Fake().devices = 2; }, "; rank 2 sees 2 GPUs");
  ExpectRefusal([](int rank) { Fake().out_of_memory = rank == 1; },
                " can't go on: rank 1: cudaStreamCreate: out of memory");
}

}  // namespace
}  // namespace lathe
