#include "lathe/distributed/testing/testing.h"

#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <iostream>
#include <sstream>

#include "lathe/core/base/error.h"
#include "lathe/distributed/rendezvous/rank_end.h"
#include "lathe/distributed/rendezvous/rank_names.h"
#include "lathe/distributed/rendezvous/socket.h"

namespace lathe {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void RunChild(const ProcessEnvironment& env, int out,
                           const std::function<std::string(const ProcessEnvironment&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string said;
  int code = 0;
  try {
    said = body(env);
    EndRank();  // as at a program's end: the others may have more to do
  } catch (const Error& e) {
    said = e.message();
    code = 3;
  } catch (const std::exception& e) {
    said = e.what();
    code = 4;
  }
  if (write(out, said.data(), said.size()) < 0) code = 5;
  std::cout.flush();
  _exit(testing::Test::HasFailure() ? 1 : code);
}

}  // namespace

int FreePort() {
  static std::vector<Socket> held;
  return LocalPort(held.emplace_back(Bind("127.0.0.1", 0)));
}

std::vector<ProcessEnvironment> Environments(int n, int port) {
  std::vector<ProcessEnvironment> environments(n);
  for (int rank = 0; rank < n; ++rank) {
    ProcessEnvironment& env = environments[rank];
    env.rank = env.local_rank = rank;
    env.world_size = env.local_world_size = n;
    env.master_port = port;
  }
  return environments;
}

std::vector<RankResult> RunProcesses(
    const std::vector<ProcessEnvironment>& environments,
    const std::function<std::string(const ProcessEnvironment&)>& body) {
  const Clock::time_point start = Clock::now();
  constexpr std::chrono::minutes kMost(1);
  std::vector<pid_t> pids;
  std::vector<pollfd> outputs;
  std::cout.flush();
  for (const ProcessEnvironment& env : environments) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    const pid_t pid = fork();
    if (pid == 0) RunChild(env, ends[1], body);
    close(ends[1]);
    pids.push_back(pid);
    outputs.push_back({ends[0], POLLIN, 0});
  }
  std::vector<RankResult> results(pids.size());
  for (size_t open = pids.size(); open > 0;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(start + kMost - Clock::now());
    if (poll(outputs.data(), outputs.size(),
             static_cast<int>(std::max<int64_t>(left.count(), 0))) == 0) {
      for (const pid_t pid : pids) kill(pid, SIGKILL);
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].fd < 0 || outputs[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t got = read(outputs[i].fd, buffer, sizeof buffer);
      if (got > 0) {
        results[i].said.append(buffer, static_cast<size_t>(got));
        continue;
      }
      results[i].seconds = std::chrono::duration<double>(Clock::now() - start).count();
      close(outputs[i].fd);
      outputs[i].fd = -1;
      --open;
    }
  }
  for (size_t i = 0; i < pids.size(); ++i) {
    int status = 0;
    waitpid(pids[i], &status, 0);
    results[i].exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return results;
}

std::shared_ptr<Store> ConnectToStore(const ProcessEnvironment& env, const std::string& name) {
  return std::make_shared<Store>(env.master_addr, env.master_port, "job", std::chrono::seconds(10),
                                 name);
}

JobStore OpenStore(const ProcessEnvironment& env) {
  JobStore result;
  if (env.rank == 0) {
    result.server = std::make_shared<StoreServer>(env.master_addr, env.master_port, "job");
  }
  result.store = ConnectToStore(env, RankName(env.rank));
  return result;
}

TcpTraffic MeasureTcpTraffic(int store_port) {
  TcpTraffic traffic;
  for (int fd = 0; fd < 1024; ++fd) {
    std::array<in_port_t, 2> ports{};
    sockaddr_storage address{};
    bool is_connection = true;
    for (const bool own : {true, false}) {
      socklen_t length = sizeof address;
      auto* const at = reinterpret_cast<sockaddr*>(&address);
      is_connection = is_connection && (own ? getsockname : getpeername)(fd, at, &length) == 0 &&
                      (address.ss_family == AF_INET || address.ss_family == AF_INET6);
      // The port lies at the same place in both kinds of addresses.
      ports[own] = ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
    }
    if (!is_connection || std::ranges::count(ports, store_port) > 0) continue;
    tcp_info info{};
    socklen_t length = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) continue;
    ++traffic.connections;
    traffic.bytes += static_cast<double>(info.tcpi_bytes_sent - info.tcpi_bytes_retrans);
  }
  return traffic;
}

std::string CaptureStderr(const std::function<void()>& body) {
  struct Redirection {
    std::ostringstream said;
    std::streambuf* const before = std::cerr.rdbuf(said.rdbuf());
    ~Redirection() { std::cerr.rdbuf(before); }
  } redirection;
  body();
  return redirection.said.str();
}

void ExpectAllWell(const std::vector<RankResult>& results) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].exit_code, 0) << "rank " << rank << ": " << results[rank].said;
  }
}

ProcessEnvironment PlacedOn(ProcessEnvironment env, bool one_machine) {
  if (!one_machine) env.local_world_size = 1;
  return env;
}

ProcessEnvironment PlacedOn(ProcessEnvironment env, const std::vector<int>& machines) {
  env.local_rank = env.rank;
  for (const int ranks : machines) {
    env.local_world_size = ranks;
    if (env.local_rank < ranks) break;
    env.local_rank -= ranks;
  }
  return env;
}

std::vector<RankResult> RunRanks(
    int n, const std::function<std::string(const ProcessEnvironment&)>& body) {
  return RunProcesses(Environments(n, FreePort()), body);
}

}  // namespace lathe
