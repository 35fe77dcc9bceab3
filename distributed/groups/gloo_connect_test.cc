// Tests that the other ranks notice one that ends while all connect.
#include "lathe/distributed/groups/gloo_connect.h"

#include <gloo/transport/tcp/device.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Runs a rank that joins, publishes its address for Gloo and kills itself before it is connected.
void EndWhileConnecting(const ProcessEnvironment& env) {
  struct FatalStore : gloo::rendezvous::Store {
    explicit FatalStore(lathe::Store& own) : store(own) {}
    void set(const std::string& key, const std::vector<char>& data) override {
      store.Set("gloo/" + key, {data.data(), data.size()});
    }
    std::vector<char> get(const std::string& key) override {  // called for host names
      const std::string value = store.Get("gloo/" + key, seconds(20)).value();
      return {value.begin(), value.end()};
    }
    // Gloo calls it to wait for others' addresses, after it has published its own.
    void wait(const std::vector<std::string>&) override { raise(SIGKILL); }
    void wait(const std::vector<std::string>&, const milliseconds&) override { raise(SIGKILL); }
    lathe::Store& store;
  };
  const std::string rank = std::to_string(env.rank);
  Store store(env.master_addr, env.master_port, "lathe 1 " + env.job, seconds(20), "rank " + rank);
  store.Set("joined/" + rank, std::to_string(env.world_size));
  store.Get("verdict", seconds(20));
  gloo::transport::tcp::attr attributes;
  attributes.hostname = "127.0.0.1";
  FatalStore fatal(store);
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::Context(env.rank, env.world_size).connectFullMesh(fatal, device);
}

TEST(Faults, ARankThatEndsWhileAllConnectIsNamedAtOnce) {
  for (const int victim : {1, 2}) {
    const auto results = RunRanks(3, [victim](const ProcessEnvironment& env) {
      if (env.rank == victim) EndWhileConnecting(env);
      JoinProcessGroup(env, {.timeout = seconds(30)});
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
