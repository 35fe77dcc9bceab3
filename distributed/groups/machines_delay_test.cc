// Tests the collectives between machines whose packets take long to arrive.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/testing/network_testing.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kDelay(20);

// Machines on a switch that delivers each frame kDelay after it came. A thread of the test is the
// switch.
class DelayedNetwork : public NetworkMachines {
 public:
  explicit DelayedNetwork(int num_machines) : NetworkMachines(num_machines) {
    for (int machine = 0; machine < num_machines && works_; ++machine) {
      works_ =
          AddPort("lathetap" + std::to_string(machine)) &&
          Shell("ip link set lathetap" + std::to_string(machine) + " netns " + Name(machine)) &&
          Shell("ip -n " + Name(machine) + " link set lathetap" + std::to_string(machine) +
                " name card address 02:00:00:00:00:0" + std::to_string(machine) + " mtu 9000") &&
          StartCard(machine);
    }
    if (works_) thread_ = std::thread([this] { Deliver(); });
  }
  ~DelayedNetwork() {
    quit_ = true;
    if (thread_.joinable()) thread_.join();
    for (const pollfd& port : ports_) close(port.fd);
  }

 private:
  // Opens the other end of a network card.
  bool AddPort(const std::string& name) {
    const int file = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return false;
    ports_.push_back({file, POLLIN, 0});
    ifreq request{};
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    std::strncpy(request.ifr_name, name.c_str(), sizeof request.ifr_name - 1);
    return ioctl(file, TUNSETIFF, &request) == 0;
  }

  void Deliver() {
    struct Frame {
      Clock::time_point due;
      size_t from;
      std::string bytes;
    };
    std::deque<Frame> frames;  // in the order of their time, as all take as long
    std::string bytes(10'000, 0);
    while (!quit_) {
      const auto wait = frames.empty()
                            ? milliseconds(10)
                            : std::chrono::ceil<milliseconds>(frames.front().due - Clock::now());
      poll(ports_.data(), ports_.size(), std::max(0, static_cast<int>(wait.count())));
      for (size_t from = 0; from < ports_.size(); ++from) {
        ssize_t size = 0;
        while ((size = read(ports_[from].fd, bytes.data(), bytes.size())) > 0)
          frames.push_back(
              {Clock::now() + kDelay, from, bytes.substr(0, static_cast<size_t>(size))});
      }
      for (; !frames.empty() && frames.front().due <= Clock::now(); frames.pop_front()) {
        const Frame& frame = frames.front();
        // The address's last byte is the machine; a first byte that is odd means all machines.
        const bool to_all = (frame.bytes[0] & 1) != 0;
        for (size_t to = 0; to < ports_.size(); ++to) {
          if (to == frame.from || !(to_all || static_cast<size_t>(frame.bytes[5]) == to)) continue;
          // What a card has no room for is lost, and TCP sends it again.
          [[maybe_unused]] const ssize_t sent =
              write(ports_[to].fd, frame.bytes.data(), frame.bytes.size());
        }
      }
    }
  }

  std::vector<pollfd> ports_;
  std::atomic<bool> quit_ = false;
  std::thread thread_;
};

// Returns how many delays the fastest of some calls took.
template <typename Call>
double Rounds(const Call& call) {
  double least = 1e9;
  for (int trial = 0; trial < 6; ++trial) {
    const Clock::time_point start = Clock::now();
    call();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - start) / kDelay);
  }
  return least;
}

// The rounds that docs/distributed.md tells.
TEST(OnSlowLinks, CallsTakeTheTimeOfTheirRounds) {
  const std::vector<int> machines = {2, 2, 2, 2};
  const DelayedNetwork network(static_cast<int>(std::ssize(machines)));
  if (!network.works()) GTEST_SKIP() << "no network namespaces can be made here";
  const int n = std::accumulate(machines.begin(), machines.end(), 0);
  const auto results = RunProcesses(Environments(n, FreePort()), [&](ProcessEnvironment env) {
    env = PlacedOn(env, machines);
    env.master_addr = DelayedNetwork::Address(0);
    DelayedNetwork::Enter(env.rank / 2);
    const auto group = JoinProcessGroup(env, {.timeout = std::chrono::seconds(60)});
    std::vector<float> small(100), large(1'000'000);
    std::ostringstream out;
    out << Rounds([&] { group->Barrier(); }) << ' ';
    out << Rounds([&] { group->AllReduce(small); }) << ' ';
    group->Barrier();
    for (int trial = 0; trial < 3; ++trial) {
      std::ranges::fill(large, static_cast<float>(env.rank));
      group->AllReduce(large);
      EXPECT_EQ(std::ranges::count(large, static_cast<float>(n * (n - 1) / 2)), std::ssize(large));
    }
    return out.str();
  });
  ExpectAllWell(results);
  for (const RankResult& result : results) {
    double barrier = 0, all_reduce = 0;
    std::istringstream(result.said) >> barrier >> all_reduce;
    // The receivers say that they are ready, for all log2 M rounds at once.
    EXPECT_GT(barrier, 1.9);
    EXPECT_LT(barrier, 3.9);
    // The comparison, and 2 log2 M messages of Gloo's own. Each takes two delays, as its receiver
    // first says that it is ready.
    EXPECT_GT(all_reduce, 5.9);
    EXPECT_LT(all_reduce, 11.9);
  }
}

}  // namespace
}  // namespace lathe
