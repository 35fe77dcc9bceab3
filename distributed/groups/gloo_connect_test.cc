// Tests that the other ranks notice one that ends while all connect.
#include "lathe/distributed/groups/gloo_connect.h"

#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/liveness/peer_watch.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Runs a rank that joins, publishes where it listens, and kills itself before it is connected.
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
    gloo::transport::tcp::attr attributes;
    attributes.hostname = "127.0.0.1";
    const auto device = gloo::transport::tcp::CreateDevice(attributes);
    const auto transport = device->createContext(env.rank, env.world_size);
    for (int other = 0; other < env.world_size; ++other) {
      if (other == env.rank) continue;
      const auto address = transport->createPair(other)->address().bytes();
      store->Set(GlooAddressKey("0", env.rank, other), {address.data(), address.size()});
    }
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

}  // namespace
}  // namespace lathe
