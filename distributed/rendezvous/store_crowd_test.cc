// Tests what many ranks at once cost the store, and the calls for several keys that they use.
#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <atomic>
#include <iostream>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lathe/distributed/rendezvous/rank_names.h"
#include "lathe/distributed/rendezvous/store.h"
#include "lathe/distributed/rendezvous/store_testing.h"

namespace lathe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using Keys = std::vector<std::string>;
using Places = std::vector<size_t>;
using Values = std::vector<std::optional<std::string>>;

class StoreOfTwo : public testing::Test {
 protected:
  StoreServer server_{kHost, 0, "job"};
  Store a_{kHost, server_.port(), "job", seconds(30)},
      b_{kHost, server_.port(), "job", seconds(30)};
};

TEST_F(StoreOfTwo, SeveralValuesComeTogether) {
  a_.Set("x", "1");
  a_.Set("y", "");
  EXPECT_EQ(b_.GetSeveral({"x", "y", "x"}, seconds(30)), (Values{"1", "", "1"}));
  EXPECT_EQ(b_.GetSeveral({}, seconds(30)), Values{});
  EXPECT_EQ(b_.GetSeveral({"no", "x", ""}, milliseconds(0)), (Values{std::nullopt, "1", {}}));
  EXPECT_EQ(b_.Await({"x", "y"}, seconds(30)), Places{});
  EXPECT_EQ(b_.Await({}, seconds(30)), Places{});
  EXPECT_EQ(b_.Await({"x", "no", "y", "none"}, milliseconds(0)), (Places{1, 3}));
  EXPECT_EQ(b_.Get("x", seconds(30)), "1");  // the answers did not get mixed up
}

TEST_F(StoreOfTwo, WaitsUntilTheLastIsThere) {
  const auto start = steady_clock::now();
  a_.Set("0", "zero");
  EXPECT_EQ(b_.GetSeveral({"0", "1"}, milliseconds(100)), (Values{"zero", std::nullopt}));
  EXPECT_EQ(b_.Await({"0", "1"}, milliseconds(100)), Places{1});
  EXPECT_GE(steady_clock::now() - start, milliseconds(150));  // twice 100, rounded
  for (const bool await : {true, false}) {
    const Keys keys = {await ? "a" : "A", await ? "b" : "B", await ? "a" : "A"};
    std::atomic<bool> is_set = false;
    std::thread later([&] {
      for (const size_t i : {1u, 0u}) {
        std::this_thread::sleep_for(milliseconds(100));
        is_set = i == 0;
        a_.Set(keys[i], keys[i]);
      }
    });
    if (await) {
      EXPECT_EQ(b_.Await(keys, seconds(30)), Places{});
    } else {
      EXPECT_EQ(b_.GetSeveral(keys, seconds(30)), (Values{"A", "B", "A"}));
    }
    EXPECT_TRUE(is_set);
    later.join();
  }
}

// Neither the keys nor the values fit into one message.
TEST_F(StoreOfTwo, WhatDoesNotFitComesInParts) {
  constexpr int kKeys = 2500;
  Keys keys;
  for (int i = 0; i < kKeys; ++i) {
    keys.push_back(std::to_string(i) + std::string(900, 'k'));
    a_.Set(keys.back(), std::to_string(i) + std::string(i % 5 == 0 ? 3000 : 0, 'v'));
  }
  a_.Set("long", std::string(Store::kLongestValue, 'x'));
  keys.insert(keys.begin() + 7, "long");
  keys.push_back("missing");
  const Values values = b_.GetSeveral(keys, milliseconds(0));
  ASSERT_EQ(values.size(), keys.size());
  for (size_t i = 0; i + 1 < keys.size(); ++i) {
    EXPECT_EQ(values[i]->front(), keys[i] == "long" ? 'x' : keys[i].front()) << i;
  }
  EXPECT_EQ(values[7]->size(), Store::kLongestValue);
  EXPECT_EQ(values.back(), std::nullopt);
  EXPECT_EQ(b_.Await(keys, milliseconds(0)), Places{keys.size() - 1});
}

// A client that goes while it waits leaves nothing behind that a later Set would trip over.
TEST_F(StoreOfTwo, WhoWaitsMayGo) {
  for (int round = 0; round < 20; ++round) {
    const std::string key = std::to_string(round);
    auto waits = std::make_unique<Store>(kHost, server_.port(), "job", seconds(30));
    std::thread waiting([&] { EXPECT_THROW(waits->Await({key, "never"}, seconds(30)), Error); });
    std::this_thread::sleep_for(milliseconds(5));  // most likely it waits by now
    waits->BreakOff();
    waiting.join();
    waits.reset();
    a_.Set(key, "");
    EXPECT_EQ(b_.Get(key, seconds(30)), "");
  }
}

// 512 ranks, each a thread with connections of its own, do what a joining rank asks of the store.
// The limit is on the time from the first connection to the last answer. 3 s is the aim on two
// idle cores, where it took 0.4 s; the test allows for busy ones and for sanitizers.
TEST(StoreCrowd, ManyRanksJoinAtOnce) {
  constexpr int kRanks = 512;
  constexpr seconds kLimit(20), kLong(60);
  StoreServer server(kHost, 0, "job");
  const std::vector<int> all = RanksBetween(0, kRanks);
  const std::string blob(130, 'b');
  std::atomic<int> well = 0;
  std::latch begin(kRanks + 1);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      begin.arrive_and_wait();
      Store store(kHost, server.port(), "job", kLong, RankName(rank));
      Store life(kHost, server.port(), "job", kLong);
      bool is_well = store.Add(RankKey("joins", rank), 1) == 1;
      store.Set(RankKey("joined", rank), std::to_string(kRanks));
      if (rank == 0) {
        is_well = is_well && AwaitRanks(store, "joined", all, kLong).empty();
        for (const auto& size : store.GetSeveral(RankKeys("joined", all), milliseconds(0)))
          is_well = is_well && size == std::to_string(kRanks);
        store.Set("verdict", "");
      }
      is_well = is_well && store.Get("verdict", kLong).has_value();
      life.Set(RankKey("blob", rank), blob);
      for (const auto& theirs : life.GetSeveral(RankKeys("blob", all), kLong))
        is_well = is_well && theirs == blob;
      store.Leave({{RankKey("bye", rank), ""}});
      if (is_well) ++well;
    });
  }
  begin.arrive_and_wait();
  const auto start = steady_clock::now();
  for (std::thread& thread : threads) thread.join();
  const auto took = steady_clock::now() - start;
  EXPECT_EQ(well, kRanks);
  EXPECT_LT(took, kLimit);
  RecordProperty("milliseconds",
                 static_cast<int>(std::chrono::duration_cast<milliseconds>(took).count()));
  std::cout << kRanks << " ranks joined in " << std::chrono::duration<double>(took).count() << " s"
            << std::endl;
}

}  // namespace
}  // namespace lathe
