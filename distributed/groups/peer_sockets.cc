#include "lathe/distributed/groups/peer_sockets.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace lathe {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

PeerListener::PeerListener(const std::string& host, const std::optional<PortRange>& ports)
    : host_(host), socket_(AtFreePort(ports, [&](int port) { return Listen(host, port); })) {
  std::random_device random;
  for (uint32_t& word : expected_.secret) word = random();
}

std::string PeerListener::address() const {
  std::ostringstream text;
  text << host_ << ' ' << LocalPort(socket_);
  for (const uint32_t word : expected_.secret) text << ' ' << word;
  return text.str();
}

bool PeerListener::Read(Newcomer& newcomer) const {
  std::array<char, sizeof(PeerGreeting)> bytes;
  // What follows the greeting is not this listener's to read.
  const ssize_t got = recv(newcomer.socket.fd(), bytes.data(),
                           bytes.size() - newcomer.received.size(), MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  newcomer.received.append(bytes.data(), static_cast<size_t>(got));
  const size_t known = std::min(newcomer.received.size(), sizeof expected_.secret);
  return got > 0 && std::memcmp(newcomer.received.data(), &expected_.secret, known) == 0;
}

std::optional<PeerListener::Met> PeerListener::Accept(std::chrono::milliseconds time) {
  std::vector<pollfd> polled = {{socket_.fd(), POLLIN, 0}};
  for (const Newcomer& newcomer : newcomers_) polled.push_back({newcomer.socket.fd(), POLLIN, 0});
  if (poll(polled.data(), polled.size(), static_cast<int>(time.count())) <= 0) return std::nullopt;
  auto newcomer = newcomers_.begin();
  for (size_t i = 1; i < polled.size(); ++i) {
    const auto present = newcomer++;
    if (polled[i].revents == 0) continue;
    if (!Read(*present)) {
      newcomers_.erase(present);
    } else if (present->received.size() == sizeof(PeerGreeting)) {
      PeerGreeting greeting;
      std::memcpy(&greeting, present->received.data(), sizeof greeting);
      Met met = {greeting.name, std::move(present->socket)};
      newcomers_.erase(present);
      return met;
    }
  }
  if (polled[0].revents == 0) return std::nullopt;
  Socket socket(accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket && errno != EAGAIN) std::this_thread::sleep_for(time);  // too many files are open
  if (socket) newcomers_.push_back({std::move(socket), ""});
  if (newcomers_.size() > kMostNewcomers) newcomers_.pop_front();
  return std::nullopt;
}

Socket ConnectToPeer(const std::string& address, PeerName self, Deadline deadline,
                     const std::function<void()>& on_wait) {
  // One try. The system itself repeats what gets no answer, a second later at first.
  constexpr std::chrono::milliseconds kTry(3000), kPause(50), kRefused(2000);
  std::istringstream text(address);
  std::string host;
  int port = 0;
  PeerGreeting greeting = {.name = self};
  text >> host >> port;
  for (uint32_t& word : greeting.secret) text >> word;
  const Clock::time_point start = Clock::now();
  for (;;) {
    const Deadline end = std::min(deadline, Clock::now() + kTry);
    std::string problem;
    Socket socket = TryToConnect(host, port, end, problem);
    if (socket && SendAll(socket, &greeting, sizeof greeting, end)) return socket;
    on_wait();
    const bool is_refused = Clock::now() < end;
    if (Clock::now() + kPause >= deadline || (is_refused && Clock::now() - start > kRefused)) {
      throw std::runtime_error(AddressText(host, port) + ": " +
                               (problem.empty() ? "the connection is lost" : problem));
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace lathe
