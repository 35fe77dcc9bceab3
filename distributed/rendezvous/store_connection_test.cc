// Tests how the store and its clients cope with servers that are late, hang or end, and with
// programs that are not Lathe's.
#include <absl/status/status.h>
#include <gtest/gtest.h>
#include <net/if.h>
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
#include <memory>
#include <thread>
#include <vector>

#include "lathe/distributed/rendezvous/socket.h"
#include "lathe/distributed/rendezvous/store.h"
#include "lathe/distributed/rendezvous/store_testing.h"

namespace lathe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// A slow machine needs less than this for a call with a timeout below a second, even under
// ThreadSanitizer. A store waits longer for answers by default: 30 s.
constexpr seconds kShort(10);

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
  EXPECT_EQ(message.find("127.0.0.1:" + std::to_string(port) + ": rank 0 did not answer within "),
            0u)
      << message;
  EXPECT_NE(message.find("Connection refused"), std::string::npos) << message;
  EXPECT_LT(steady_clock::now() - start, kShort);
  EXPECT_NE(MessageOf([&] { Store("no-such-host.invalid", port, "job", milliseconds(100)); },
                      absl::StatusCode::kUnavailable)
                .find("rank 0 did not answer"),
            std::string::npos);
}

TEST(Store, AnotherJob) {
  StoreServer server(kHost, 0, "job");
  EXPECT_EQ(MessageOf([&] { Store(kHost, server.port(), "other", seconds(5)); },
                      absl::StatusCode::kFailedPrecondition),
            AddressText(kHost, server.port()) + ": rank 0 of another job listens there");
  Store(kHost, server.port(), "job", seconds(5)).Set("k", "v");
}

// A client says so at once, also where the name of the server can't be resolved for this reason.
TEST(Store, NoFileIsLeftForAConnection) {
  rlimit usual;
  getrlimit(RLIMIT_NOFILE, &usual);
  for (const char* const host : {"127.0.0.1", "localhost"}) {
    const rlimit none = {3, usual.rlim_max};  // files that are open already stay open
    setrlimit(RLIMIT_NOFILE, &none);
    const auto start = steady_clock::now();
    std::string said;
    try {
      const Socket socket = Connect(host, 1, start + seconds(60));
    } catch (const Error& e) {
      said = e.message();
    }
    setrlimit(RLIMIT_NOFILE, &usual);
    EXPECT_NE(said.find("Too many open files"), std::string::npos) << said;
    EXPECT_LT(steady_clock::now() - start, kShort);
  }
}

// The server cuts off clients that send garbage or that ask before they greet. A client that stops
// in the middle of its greeting does no harm.
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

// Something other than a store may listen at the port. Its answer may be shorter than any reply of
// a store.
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
    EXPECT_EQ(MessageOf([&] { Store(kHost, LocalPort(listener), "job", seconds(5)); },
                        absl::StatusCode::kFailedPrecondition),
              AddressText(kHost, LocalPort(listener)) +
                  ": what answers there is not rank 0 of a Lathe job");
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
  EXPECT_EQ(message.find(AddressText(kHost, LocalPort(listener)) +
                         " has accepted connections and closed them without an answer, for "),
            0u)
      << message;
  EXPECT_TRUE(message.ends_with(" s: rank 0 has ended, or it is another program")) << message;
  EXPECT_GE(steady_clock::now() - start, milliseconds(500));
  EXPECT_LT(steady_clock::now() - start, kShort);
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
  EXPECT_EQ(message.find(AddressText(kHost, LocalPort(listener)) +
                         " accepts connections but did not answer within "),
            0u)
      << message;
  EXPECT_TRUE(message.ends_with(" s: rank 0 hangs, or it is another program")) << message;
  EXPECT_GE(steady_clock::now() - start, milliseconds(600));
  EXPECT_LT(steady_clock::now() - start, kShort);
}

// Server and client are stopped together, for longer than the client's patience. A job that a user
// stops as a whole, or whose machine is suspended, looks so.
TEST(Store, ATimeInWhichTheClientStoodStillDoesNotCount) {
  for (const bool also_the_server : {true, false}) {
    const StoreProcess server;
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t client = fork();
    if (client == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Store store(kHost, server.port(), "job", seconds(30));
      store.SetPatience(seconds(2));
      if (write(ends[1], "x", 1) != 1) _exit(1);
      try {
        for (const auto end = steady_clock::now() + seconds(5); steady_clock::now() < end;) {
          store.Set("k", "v");
          store.Get("none", milliseconds(50));
        }
      } catch (const Error&) {
        _exit(3);
      }
      _exit(0);
    }
    char byte;
    ASSERT_EQ(read(ends[0], &byte, 1), 1);
    // The server is stopped first and goes on last, so that the client waits for it most likely.
    if (also_the_server) server.Stop();
    std::this_thread::sleep_for(milliseconds(100));
    kill(client, SIGSTOP);
    std::this_thread::sleep_for(seconds(3));
    kill(client, SIGCONT);
    std::this_thread::sleep_for(milliseconds(100));
    server.Continue();
    int status = 0;
    waitpid(client, &status, 0);
    EXPECT_EQ(status, 0);
    for (const int end : ends) close(end);
  }
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

// Another program had the port for a moment: it has accepted the connection, says nothing, and
// listens no more when rank 0 comes.
TEST(Store, ASilentConnectionIsGivenUp) {
  Socket listener = Listen(kHost, 0);
  const int port = LocalPort(listener);
  std::unique_ptr<StoreServer> server;
  Socket kept;
  std::thread other([&] {
    kept = AcceptBefore(listener, steady_clock::now() + seconds(10));
    listener = Socket();
    server = std::make_unique<StoreServer>(kHost, port, "job");
  });
  const auto start = steady_clock::now();
  Store store(kHost, port, "job", seconds(60), "rank 1");
  EXPECT_LT(steady_clock::now() - start, seconds(20));
  other.join();
  EXPECT_TRUE(kept);
  store.Set("k", "v");
  // The greeting that was given up counts for nobody.
  EXPECT_EQ(store.Get(Store::kGone, milliseconds(200)), std::nullopt);
}

}  // namespace
}  // namespace lathe
