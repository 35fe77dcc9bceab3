#include "lathe/distributed/rendezvous/store.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <fstream>
#include <functional>
#include <regex>
#include <set>
#include <thread>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/distributed/rendezvous/socket.h"

namespace lathe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr char kHost[] = "127.0.0.1";
// More than a slow machine needs for a call with a timeout below a second, under ThreadSanitizer,
// too. Less than the 30 s for which a store waits for answers by default.
constexpr seconds kShort(10);

std::string MessageOf(const std::function<void()>& body, absl::StatusCode code) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.message();
    EXPECT_NE(e.hint(), "") << e.message();
    return e.message();
  }
  return "nothing was thrown";
}

// Returns the message with T in place of a time in seconds.
std::string WithoutTime(const std::string& message) {
  return std::regex_replace(message, std::regex("[0-9.]+ s\\b"), "T s");
}

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

TEST(Store, TheServerMayComeLater) {
  int port;
  {
    StoreServer server(kHost, 0, "job");
    port = server.port();
  }
  std::unique_ptr<StoreServer> server;
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(200));
    server = std::make_unique<StoreServer>(kHost, port, "job");
  });
  Store store(kHost, port, "job", seconds(30));
  store.Set("k", "v");
  later.join();
}

TEST(Store, NobodyThere) {
  int port;
  {
    StoreServer server(kHost, 0, "job");
    port = server.port();
  }
  const auto start = steady_clock::now();
  const std::string message = MessageOf([&] { Store(kHost, port, "job", milliseconds(300)); },
                                        absl::StatusCode::kUnavailable);
  EXPECT_EQ(WithoutTime(message),
            AddressText(kHost, port) +
                ": nobody answered in T s, though rank 0 should: Connection refused");
  EXPECT_LT(steady_clock::now() - start, kShort);
  EXPECT_NE(MessageOf([&] { Store("no-such-host.invalid", port, "job", milliseconds(100)); },
                      absl::StatusCode::kUnavailable)
                .find("nobody answered"),
            std::string::npos);
}

TEST(Store, AnotherJob) {
  StoreServer server(kHost, 0, "job");
  EXPECT_EQ(MessageOf([&] { Store(kHost, server.port(), "other", seconds(5)); },
                      absl::StatusCode::kFailedPrecondition),
            AddressText(kHost, server.port()) + ": rank 0 of another job listens there");
  Store(kHost, server.port(), "job", seconds(5)).Set("k", "v");
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

// Garbage, a client that stops in the middle, and one that asks before it greets are cut off and do
// no harm.
TEST(Store, StrangersDoNoHarm) {
  StoreServer server(kHost, 0, "job");
  Store store(kHost, server.port(), "job", seconds(5));
  const Deadline soon = steady_clock::now() + seconds(5);
  for (const std::string& text : {std::string("GET / HTTP/1.1\r\nHost: example\r\n\r\n"),
                                  std::string(100000, '\xff'), std::string(24, '\0')}) {
    const Socket stranger = Connect(kHost, server.port(), soon);
    SendAll(stranger, text.data(), text.size(), soon);
    char byte;
    EXPECT_FALSE(ReceiveAll(stranger, &byte, 1, soon));
  }
  const Socket half = Connect(kHost, server.port(), soon);
  SendAll(half, "1HTL", 4, soon);
  store.Set("k", "v");
  EXPECT_EQ(store.Get("k", seconds(5)), "v");
}

Socket AcceptBefore(const Socket& listener, Deadline deadline) {
  int fd;
  while ((fd = accept(listener.fd(), nullptr, nullptr)) < 0 && steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  return Socket(fd);
}

// A listener that is no store answers with something else, possibly shorter than any reply.
TEST(Store, WhatAnswersIsNoStore) {
  const Socket listener = Listen(kHost, 0);
  const std::vector<std::string> answers = {"HTTP/1.1 400 Bad Request\r\n\r\n", "220 hi\r\n", "no",
                                            std::string(1000, '\xff')};
  std::thread other([&] {
    for (const std::string& text : answers) {
      const Deadline soon = steady_clock::now() + seconds(10);
      const Socket client = AcceptBefore(listener, soon);
      SendAll(client, text.data(), text.size(), soon);
      if (text.size() < 4) shutdown(client.fd(), SHUT_WR);
      char byte;
      while (ReceiveAll(client, &byte, 1, soon)) {  // until it hangs up
      }
    }
  });
  for (size_t i = 0; i < answers.size(); ++i) {
    const auto start = steady_clock::now();
    EXPECT_EQ(
        MessageOf([&] { Store(kHost, LocalPort(listener), "job", seconds(5)); },
                  absl::StatusCode::kFailedPrecondition),
        AddressText(kHost, LocalPort(listener)) + ": what answers there is no rank 0 of Lathe's");
    EXPECT_LT(steady_clock::now() - start, seconds(3)) << i;
  }
  other.join();
}

// A rank 0 ends before it answers, with and without having read the greeting. Then the next one
// starts.
TEST(Store, WhoClosesWithoutAWordIsTriedAgain) {
  Socket listener = Listen(kHost, 0);
  const int port = LocalPort(listener);
  std::unique_ptr<StoreServer> server;
  std::thread other([&] {
    const Deadline soon = steady_clock::now() + seconds(10);
    AcceptBefore(listener, soon);
    {
      const Socket client = AcceptBefore(listener, soon);
      char byte;
      ReceiveAll(client, &byte, 1, soon);
    }
    listener = Socket();
    server = std::make_unique<StoreServer>(kHost, port, "job");
  });
  Store store(kHost, port, "job", seconds(30));
  other.join();
  store.Set("k", "v");
  EXPECT_EQ(store.Get("k", seconds(30)), "v");
}

TEST(Store, WhoListensClosesWithoutAWord) {
  const Socket listener = Listen(kHost, 0);
  std::atomic<bool> over = false;
  std::thread other([&] {
    while (!over) AcceptBefore(listener, steady_clock::now() + milliseconds(20));
  });
  const auto start = steady_clock::now();
  const std::string message =
      MessageOf([&] { Store(kHost, LocalPort(listener), "job", milliseconds(600)); },
                absl::StatusCode::kUnavailable);
  over = true;
  other.join();
  EXPECT_EQ(WithoutTime(message),
            AddressText(kHost, LocalPort(listener)) +
                " accepts connections but closes them without a word, for T s now: rank 0 has "
                "ended, or it is another program");
  EXPECT_GE(steady_clock::now() - start, milliseconds(500));
  EXPECT_LT(steady_clock::now() - start, kShort);
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

// The system has only one port to choose from: the one to connect to.
TEST(Store, NobodyIsConnectedToItself) {
  std::string message;
  std::string listening;
  std::thread([&] {  // in a network namespace of its own
    if (unshare(CLONE_NEWNET) != 0) return;
    constexpr int kPort = 40000;
    const Socket any(socket(AF_INET, SOCK_DGRAM, 0));
    ifreq loopback = {};
    std::string("lo").copy(loopback.ifr_name, IFNAMSIZ);
    loopback.ifr_flags = IFF_UP;
    std::ofstream range("/proc/sys/net/ipv4/ip_local_port_range");
    range << kPort << " " << kPort << std::endl;
    if (ioctl(any.fd(), SIOCSIFFLAGS, &loopback) != 0 || !range) return;
    message = MessageOf([] { Store(kHost, kPort, "job", milliseconds(300)); },
                        absl::StatusCode::kUnavailable);
    listening = MessageOf([] { Listen(kHost, kPort); }, absl::StatusCode::kUnavailable);
  })
      .join();
  if (message.empty()) GTEST_SKIP() << "no network can be made here";
  EXPECT_TRUE(message.ends_with("Connection refused")) << message;
  EXPECT_EQ(listening, "nothing was thrown");  // nothing of the attempts stays
}

// A client that the server can't accept must not keep it busy, nor disturb the others.
TEST(Store, TooManyOpenFiles) {
  StoreServer server(kHost, 0, "job");
  Store store(kHost, server.port(), "job", seconds(5));
  const Socket waiting(socket(AF_INET, SOCK_STREAM, 0));
  rlimit usual;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
  const rlimit few = {.rlim_cur = 64, .rlim_max = usual.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<Socket> fill;
  for (int fd; (fd = dup(waiting.fd())) >= 0;) fill.emplace_back(fd);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server.port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(waiting.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::clock_t before = std::clock();  // processor time
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 4);
  store.Set("k", "v");
  EXPECT_EQ(store.Get("k", seconds(5)), "v");
  fill.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
  char byte = 0;
  const Deadline soon = steady_clock::now() + seconds(5);
  const std::string wrong(1000, '\xff');
  SendAll(waiting, wrong.data(), wrong.size(), soon);
  EXPECT_FALSE(ReceiveAll(waiting, &byte, 1, soon));  // accepted, and cut off
  EXPECT_LT(steady_clock::now(), soon);
}

// The system accepts connections for a process that has been stopped.
TEST(Store, WhoListensSaysNothing) {
  const Socket listener = Listen(kHost, 0);
  const auto start = steady_clock::now();
  const std::string message =
      MessageOf([&] { Store(kHost, LocalPort(listener), "job", milliseconds(600)); },
                absl::StatusCode::kUnavailable);
  EXPECT_EQ(WithoutTime(message),
            AddressText(kHost, LocalPort(listener)) +
                " accepts connections but did not answer within T s: rank 0 hangs, or it is "
                "another program");
  EXPECT_GE(steady_clock::now() - start, milliseconds(600));
  EXPECT_LT(steady_clock::now() - start, kShort);
}

TEST(Store, ServerGone) {
  auto server = std::make_unique<StoreServer>(kHost, 0, "job");
  const int port = server->port();
  Store store(kHost, port, "job", seconds(5));
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(100));
    server.reset();
  });
  const auto start = steady_clock::now();
  EXPECT_EQ(MessageOf([&] { store.Get("never", seconds(60)); }, absl::StatusCode::kUnavailable),
            AddressText(kHost, port) + ": the connection to rank 0 is lost");
  EXPECT_LT(steady_clock::now() - start, seconds(20));
  later.join();
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
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t serving = fork();
  if (serving == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const StoreServer server(kHost, 0, "job");
    const int port = server.port();
    if (write(ends[1], &port, sizeof port) != sizeof port) _exit(1);
    for (;;) pause();
  }
  int port = 0;
  ASSERT_EQ(read(ends[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  Store other(kHost, port, "job", seconds(5));
  for (const bool asked_before : {false, true}) {
    const std::string name = asked_before ? "rank 2" : "rank 1";
    {
      Store leaver(kHost, port, "job", seconds(5), name);
      leaver.SetPatience(milliseconds(50));
      kill(serving, SIGSTOP);
      waitpid(serving, nullptr, WUNTRACED);
      if (asked_before) {
        EXPECT_THROW(leaver.Set("x", ""), Error);
      }
      EXPECT_THROW(leaver.Leave({{"left", name}}), Error);
    }
    kill(serving, SIGCONT);
    while (other.Get("left", seconds(5)) != name) usleep(1000);
    EXPECT_EQ(other.Get(Store::kGone, milliseconds(200)), std::nullopt);
  }
  kill(serving, SIGKILL);
  waitpid(serving, nullptr, 0);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace lathe
