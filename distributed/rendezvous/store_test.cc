#include "lathe/distributed/rendezvous/store.h"

#include <absl/status/status.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <set>
#include <thread>
#include <vector>

#include "lathe/distributed/rendezvous/socket.h"
#include "lathe/distributed/rendezvous/store_testing.h"

namespace lathe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

TEST(Store, ValuesReachEverybody) {
  StoreServer server(kHost, 0, "job");
  Store a(kHost, server.port(), "job", seconds(5)), b(kHost, server.port(), "job", seconds(5));
  const std::string large(Store::kLongestValue, 'x'), binary("\0\n\xff", 3);
  a.Set("large", large);
  a.Set("binary", binary);
  a.Set("", "an empty key");
  EXPECT_EQ(b.Get("large", seconds(5)), large);
  EXPECT_EQ(b.Get("binary", seconds(5)), binary);
  EXPECT_EQ(b.Get("", seconds(5)), "an empty key");
  a.Set("binary", "new");
  EXPECT_EQ(b.Get("binary", seconds(5)), "new");
  EXPECT_THROW(a.Set("large", large + "x"), Error);
  EXPECT_THROW(a.Set(std::string(Store::kLongestKey + 1, 'k'), ""), Error);
  EXPECT_EQ(b.Get("large", seconds(5)), large);  // a refused call harms nothing
}

TEST(Store, GetWaits) {
  StoreServer server(kHost, 0, "job");
  Store a(kHost, server.port(), "job", seconds(5)), b(kHost, server.port(), "job", seconds(5));
  auto start = steady_clock::now();
  EXPECT_EQ(a.Get("late", milliseconds(100)), std::nullopt);
  EXPECT_GE(steady_clock::now() - start, milliseconds(100));
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(100));
    b.Set("late", "here");
  });
  EXPECT_EQ(a.Get("late", seconds(30)), "here");
  later.join();
}

TEST(Store, NoTwoCallersGetTheSameCount) {
  StoreServer server(kHost, 0, "job");
  std::vector<std::thread> threads;
  std::vector<std::vector<int64_t>> counts(4);
  for (auto& mine : counts) {
    threads.emplace_back([&] {
      Store store(kHost, server.port(), "job", seconds(5));
      for (int i = 0; i < 50; ++i) mine.push_back(store.Add("n", 1));
    });
  }
  for (auto& thread : threads) thread.join();
  std::set<int64_t> all;
  for (const auto& mine : counts) all.insert(mine.begin(), mine.end());
  EXPECT_EQ(all.size(), 200u);
  EXPECT_EQ(*all.rbegin(), 200);
}

TEST(Store, SumsAndWaitsAtTheLimitsHarmNobody) {
  StoreServer server(kHost, 0, "job");
  Store store(kHost, server.port(), "job", seconds(5));
  EXPECT_EQ(store.Add("sum", INT64_MAX), INT64_MAX);
  EXPECT_EQ(store.Add("sum", 1), INT64_MIN);
  EXPECT_EQ(store.Get("missing", milliseconds(-1)), std::nullopt);
  EXPECT_EQ(store.Add("sum", -1), INT64_MAX);
}

TEST(Store, PortTakenSaysByWhom) {
  StoreServer server(kHost, 0, "job");
  const std::string message =
      MessageOf([&] { StoreServer(kHost, server.port(), "job"); }, absl::StatusCode::kUnavailable);
  EXPECT_EQ(message, "port " + std::to_string(server.port()) + " is taken by process " +
                         std::to_string(getpid()) + " (store_test)");
}

TEST(Store, AddressOfAnotherMachine) {
  EXPECT_EQ(
      MessageOf([] { StoreServer("192.0.2.1", 0, "job"); }, absl::StatusCode::kInvalidArgument),
      "192.0.2.1 is not an address of this machine, where rank 0 runs");
  EXPECT_EQ(MessageOf([] { StoreServer("no-such-host.invalid", 0, "job"); },
                      absl::StatusCode::kInvalidArgument)
                .find("no-such-host.invalid: cannot be resolved"),
            0u);
}

// Returns an IPv4 address by which other machines might reach this one; "" if it has none.
std::string AddressForOthers() {
  std::string found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  for (const ifaddrs* a = all; a != nullptr && found.empty(); a = a->ifa_next) {
    if (a->ifa_addr == nullptr || a->ifa_addr->sa_family != AF_INET) continue;
    if ((a->ifa_flags & IFF_LOOPBACK) != 0 || (a->ifa_flags & IFF_UP) == 0) continue;
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(a->ifa_addr)->sin_addr, text,
              sizeof text);
    found = text;
  }
  freeifaddrs(all);
  return found;
}

// Debian's /etc/hosts gives the machine's own name a loopback address.
TEST(Store, OwnNameThatLeadsToTheLoopbackCanBeReached) {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  const std::string address = AddressForOthers();
  if (gethostbyname(name) == nullptr || address.empty()) GTEST_SKIP() << "no name or no network";
  StoreServer server(name, 0, "job");
  Store near(name, server.port(), "job", seconds(5));
  const std::string before = near.local_host();
  if (!before.starts_with("127.")) GTEST_SKIP() << name << " leads to " << before;
  Store far(address, server.port(), "job", seconds(5));
  EXPECT_EQ(far.local_host(), address);
  EXPECT_EQ(near.local_host(), address);
}

TEST(Store, LoopbackAsSuchCanNotBeReached) {
  const std::string address = AddressForOthers();
  if (address.empty()) GTEST_SKIP() << "no network";
  for (const char* host : {kHost, "127.0.0.2", "localhost"}) {
    StoreServer server(host, 0, "job");
    EXPECT_THROW(Store(address, server.port(), "job", milliseconds(0)), Error) << host;
    Store store(host, server.port(), "job", seconds(5));
    EXPECT_TRUE(store.local_host().starts_with("127.") || store.local_host() == "::1")
        << store.local_host();
  }
}

// A pod's name appears in the name service some time after the pod has started.
TEST(Store, APodWaitsForItsOwnName) {
  const std::string hosts = testing::TempDir() + "/hosts";
  std::ofstream(hosts) << "127.0.0.1 localhost\n";
  const pid_t pod = fork();
  if (pod == 0) {
    // The file passes for /etc/hosts in this process alone.
    if (unshare(CLONE_NEWNS) != 0 ||
        mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount(hosts.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr) != 0)
      _exit(77);
    setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1", 1);
    const auto start = steady_clock::now();
    const int port = LocalPort(Bind("tune-master-0", 0));
    _exit(port > 0 && steady_clock::now() - start > milliseconds(500) ? 0 : 1);
  }
  std::this_thread::sleep_for(seconds(2));
  std::ofstream(hosts, std::ios::app) << "127.0.0.1 tune-master-0\n";
  int status = 0;
  waitpid(pod, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "mounts are not allowed";
  EXPECT_EQ(status, 0);
}

// A port that is only bound counts as taken, but nobody can connect to it.
TEST(Store, APortCanBeTriedWithoutListening) {
  const Socket bound = Bind(kHost, 0);
  EXPECT_NE(MessageOf([&] { Store(kHost, LocalPort(bound), "job", milliseconds(100)); },
                      absl::StatusCode::kUnavailable)
                .find("Connection refused"),
            std::string::npos);
  const Socket listener = Listen(kHost, 0);
  EXPECT_NE(MessageOf([&] { Bind(kHost, LocalPort(listener)); }, absl::StatusCode::kUnavailable)
                .find(" is taken by process "),
            std::string::npos);
}

TEST(Store, WhoGoesWithoutAWordIsMissed) {
  StoreServer server(kHost, 0, "job");
  Store store(kHost, server.port(), "job", seconds(5), "rank 0");
  EXPECT_EQ(store.local_host(), kHost);
  {
    Store polite(kHost, server.port(), "job", seconds(5), "rank 1");
    polite.Leave();
  }
  { Store nameless(kHost, server.port(), "job", seconds(5)); }
  EXPECT_EQ(store.Get(Store::kGone, milliseconds(50)), std::nullopt);
  { Store missed(kHost, server.port(), "job", seconds(5), "rank 2"); }
  EXPECT_EQ(store.Get(Store::kGone, seconds(5)), "rank 2");
  { Store later(kHost, server.port(), "job", seconds(5), "rank 3"); }
  EXPECT_EQ(store.Get(Store::kGone, seconds(5)), "rank 2");  // still the first one
}

// A server that hears a goodbye late, because its machine is busy, still takes it for one.
TEST(Store, LastWordsArriveThoughNobodyAnswersInTime) {
  const StoreProcess server;
  Store other(kHost, server.port(), "job", seconds(5));
  for (const bool asked_before : {false, true}) {
    const std::string name = asked_before ? "rank 2" : "rank 1";
    {
      Store leaver(kHost, server.port(), "job", seconds(5), name);
      leaver.SetPatience(milliseconds(50));
      server.Stop();
      if (asked_before) {
        EXPECT_THROW(leaver.Set("x", ""), Error);
      }
      EXPECT_THROW(leaver.Leave({{"left", name}}), Error);
    }
    server.Continue();
    while (other.Get("left", seconds(5)) != name) usleep(1000);
    EXPECT_EQ(other.Get(Store::kGone, milliseconds(200)), std::nullopt);
  }
}

}  // namespace
}  // namespace lathe
