// Tests how ranks connect though one of them ends or strangers connect, too.
#include "lathe/distributed/groups/gloo_connect.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lathe/distributed/groups/channel.h"
#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/liveness/peer_watch.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kHost[] = "127.0.0.1";

void Add(void* to, const void* a, const void* b, size_t n) {
  for (size_t i = 0; i < n; ++i)
    static_cast<int64_t*>(to)[i] =
        static_cast<const int64_t*>(a)[i] + static_cast<const int64_t*>(b)[i];
}

// Runs a rank that joins, tells where it listens, and kills itself before it is connected.
void EndWhileConnecting(const ProcessEnvironment& env) {
  const std::string rank = std::to_string(env.rank);
  const auto store = std::make_shared<Store>(env.master_addr, env.master_port, "lathe 1 " + env.job,
                                             seconds(20), "rank " + rank);
  store->Set("joined/" + rank, std::to_string(env.world_size));
  store->Get("verdict", seconds(20));
  PeerWatch watch(env.rank, env.world_size, nullptr, store);
  watch.Run("connecting", [&] {
    const Introduction mine = {};
    watch.Exchange(Introduction::kKey, {reinterpret_cast<const char*>(&mine), sizeof mine},
                   seconds(20));
    watch.Exchange(Introduction::kMet, "1", seconds(20));
    const PeerListener listener(kHost, std::nullopt);
    watch.Exchange(PeerListener::kKey, listener.address(), seconds(20));
    raise(SIGKILL);
  });
}

TEST(Faults, ARankThatEndsWhileAllConnectIsNamedAtOnce) {
  for (const int victim : {1, 2}) {
    const auto results = RunRanks(3, [victim](const ProcessEnvironment& env) {
      if (env.rank == victim) EndWhileConnecting(env);
      JoinProcessGroup(PlacedOn(env, /*one_machine=*/false), {.timeout = seconds(30)});
      return std::string();
    });
    EXPECT_EQ(results[victim].exit_code, 128 + SIGKILL);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(results[rank].said, "[connecting] rank " + std::to_string(rank) +
                                        " can't go on: rank " + std::to_string(victim) +
                                        " has ended");
      EXPECT_LT(results[rank].seconds - results[victim].seconds, 2);
    }
  }
}

// Connects to the port again and again until `end`, and leaves the connections open. Some send
// nothing, some a few bytes, some a lot, like another program's greeting. Returns their number.
int DisturbPort(int port, Deadline end) {
  std::vector<Socket> strangers;
  const std::string text(sizeof(PeerGreeting) * 4, 'x');
  while (std::chrono::steady_clock::now() < end) {
    std::string problem;
    Socket stranger = TryToConnect(kHost, port, end, problem);
    usleep(1000);
    if (!stranger) continue;
    const size_t sizes[] = {0, 5, sizeof(PeerGreeting), text.size()};
    SendAll(stranger, text.data(), sizes[strangers.size() % std::size(sizes)], end);
    strangers.push_back(std::move(stranger));
  }
  return static_cast<int>(strangers.size());
}

// Rank 2 comes late, so strangers find ranks 0 and 1 while these wait for it.
TEST(Strangers, DisturbNobodyWhileRanksConnect) {
  constexpr int kFirst = 21120, kRanks = 3;  // no system chooses these ports by itself
  const auto results = RunRanks(kRanks + 1, [](const ProcessEnvironment& env) {
    if (env.rank == kRanks) {
      const Deadline end = std::chrono::steady_clock::now() + seconds(3);
      std::array<int, kRanks> found{};
      std::vector<std::thread> threads;
      for (int i = 0; i < kRanks; ++i)
        threads.emplace_back([&, i] { found[i] = DisturbPort(kFirst + i, end); });
      for (std::thread& thread : threads) thread.join();
      for (const int rank : {0, 1}) EXPECT_GE(found[rank], 4);
      return std::string();
    }
    const std::string port = std::to_string(kFirst + env.rank);
    setenv(kPortRangeVariable, (port + "-" + port).c_str(), 1);
    auto [server, store] = OpenStore(env);
    PeerWatch watch(env.rank, kRanks, std::move(server), std::move(store));
    int64_t sum = env.rank + 1;
    watch.Run("connecting", [&] {
      if (env.rank == 2) std::this_thread::sleep_for(seconds(1));
      const auto transfers = std::make_shared<ActiveTransfers>();
      const std::vector<RankPlacement> alone(kRanks);  // each on a machine of its own
      const MachineLayout layout(alone);
      const Channel channel =
          ConnectGloo(watch, layout, env.rank, kHost, seconds(20), transfers).front();
      for (int i = 0; i < 100; ++i) {
        sum = env.rank + 1;
        channel.AllReduce<int64_t>({&sum, 1}, Add);
      }
    });
    EXPECT_EQ(sum, 6);
    return std::string();
  });
  ExpectAllWell(results);
}

bool WasCutOff(const Socket& socket) {
  char byte;
  return recv(socket.fd(), &byte, 1, MSG_DONTWAIT) == 0;
}

TEST(PeerListener, TakesOnlyRanksThatKnowItsSecret) {
  PeerListener listener(kHost, std::nullopt);
  const Deadline soon = std::chrono::steady_clock::now() + seconds(20);
  std::istringstream address(listener.address());
  std::string host, problem;
  int port = 0;
  address >> host >> port;
  const Socket silent = TryToConnect(kHost, port, soon, problem);
  const Socket wrong = TryToConnect(kHost, port, soon, problem);
  const PeerGreeting guess = {.name = {.channel = 1, .machine = 2}};
  ASSERT_TRUE(SendAll(wrong, &guess, sizeof guess, soon));
  const Socket half = TryToConnect(kHost, port, soon, problem);
  ASSERT_TRUE(SendAll(half, &guess, 3, soon));
  const Socket peer =
      ConnectToPeer(listener.address(), {.channel = 1, .machine = 3}, soon, [] { FAIL(); });
  ASSERT_TRUE(SendAll(peer, "more", 4, soon));
  std::optional<PeerListener::Met> met;
  while (!met && std::chrono::steady_clock::now() < soon) met = listener.Accept(milliseconds(100));
  ASSERT_TRUE(met.has_value());
  EXPECT_EQ(met->said.channel, 1);
  EXPECT_EQ(met->said.machine, 3);
  char more[4];  // what comes after the greeting is still there
  ASSERT_TRUE(ReceiveAll(met->socket, more, sizeof more, soon));
  EXPECT_EQ(std::string(more, sizeof more), "more");
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(listener.Accept(milliseconds(50)).has_value());
  EXPECT_TRUE(WasCutOff(wrong));
  EXPECT_TRUE(WasCutOff(half));
  EXPECT_FALSE(WasCutOff(silent));
}

TEST(PeerListener, ManyStrangersDoNotUseUpItsFiles) {
  PeerListener listener(kHost, std::nullopt);
  const Deadline soon = std::chrono::steady_clock::now() + seconds(20);
  std::istringstream address(listener.address());
  std::string host, problem;
  int port = 0;
  address >> host >> port;
  std::vector<Socket> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(TryToConnect(kHost, port, soon, problem));
    EXPECT_FALSE(listener.Accept(milliseconds(100)).has_value());
  }
  EXPECT_TRUE(WasCutOff(strangers.front()));
  EXPECT_FALSE(WasCutOff(strangers.back()));
  const Socket peer = ConnectToPeer(listener.address(), {.machine = 1}, soon, [] { FAIL(); });
  std::optional<PeerListener::Met> met;
  while (!met && std::chrono::steady_clock::now() < soon) met = listener.Accept(milliseconds(100));
  EXPECT_TRUE(met.has_value());
}

// Nobody listens there any more, and no rank is lost: the network is at fault.
TEST(ConnectToPeer, SaysWhyItCanNot) {
  std::string address;
  { address = PeerListener(kHost, std::nullopt).address(); }
  int waits = 0;
  try {
    ConnectToPeer(address, {}, std::chrono::steady_clock::now() + seconds(60), [&] { ++waits; });
    FAIL() << "there is a connection";
  } catch (const std::runtime_error& e) {
    EXPECT_NE(std::string(e.what()).find("Connection refused"), std::string::npos) << e.what();
  }
  EXPECT_GT(waits, 1);
}

}  // namespace
}  // namespace lathe
