#include "lathe/distributed/groups/gloo_connect.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <gloo/common/error.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "lathe/core/base/philox.h"
#include "lathe/distributed/rendezvous/machine.h"

namespace lathe {
namespace {

namespace tcp = gloo::transport::tcp;
using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Buffer = ActiveTransfers::Buffer;

// A buffer of Gloo's whose waits throw once its transfers are broken off.
class WatchedBuffer : public Buffer {
 public:
  WatchedBuffer(std::unique_ptr<Buffer> buffer, std::shared_ptr<ActiveTransfers> transfers)
      : Buffer(buffer->ptr, buffer->size),
        buffer_(std::move(buffer)),
        transfers_(std::move(transfers)) {
    transfers_->Add(buffer_.get());
  }
  ~WatchedBuffer() override { transfers_->Remove(buffer_.get()); }

  bool waitRecv(int* rank, Milliseconds timeout) override {
    return ThrowUnless(buffer_->waitRecv(rank, timeout));
  }
  bool waitSend(int* rank, Milliseconds timeout) override {
    return ThrowUnless(buffer_->waitSend(rank, timeout));
  }
  void abortWaitRecv() override { buffer_->abortWaitRecv(); }
  void abortWaitSend() override { buffer_->abortWaitSend(); }
  void send(int to, uint64_t slot, size_t offset, size_t bytes) override {
    buffer_->send(to, slot, offset, bytes);
  }
  void recv(int from, uint64_t slot, size_t offset, size_t bytes) override {
    buffer_->recv(from, slot, offset, bytes);
  }
  void recv(std::vector<int> from, uint64_t slot, size_t offset, size_t bytes) override {
    buffer_->recv(std::move(from), slot, offset, bytes);
  }

 private:
  static bool ThrowUnless(bool done) {
    if (!done) throw gloo::IoException("broken off");
    return done;
  }
  const std::unique_ptr<Buffer> buffer_;
  const std::shared_ptr<ActiveTransfers> transfers_;
};

// A connection of Gloo's over a socket that is connected already. Gloo itself would take the first
// one that connects for the peer.
class ConnectedPair : public tcp::Pair {
 public:
  using tcp::Pair::Pair;
  // A new pair listens, at a port that nobody is told. Ends that and takes the socket. Returns
  // false if somebody has connected there all the same.
  bool Take(Socket& socket) {
    const std::lock_guard lock(m_);
    if (state_ != LISTENING) return false;
    device_->unregisterDescriptor(fd_, this);
    ::close(std::exchange(fd_, socket.Release()));
    state_ = INITIALIZING;
    handleConnected();
    return true;
  }

  // Gloo's thread calls this again and again, at once, while another thread holds the lock, as when
  // it sends. If that thread is not running, the calls would keep a core busy that it needs. So
  // this waits for 20 microseconds, and then sleeps for about 100.
  void handleEvents(int events) override {
    const Deadline end = Clock::now() + std::chrono::microseconds(20);
    do {
      if (m_.try_lock()) {
        m_.unlock();
        return tcp::Pair::handleEvents(events);
      }
      __builtin_ia32_pause();
    } while (Clock::now() < end);
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
};

// The longest time of Gloo's waits, which ActiveTransfers ends. Gloo counts time in which a process
// is stopped.
constexpr Milliseconds kNoLimit = std::chrono::hours(24 * 365);

// A transport of Gloo's with such connections and buffers.
class WatchedTransport : public tcp::Context {
 public:
  WatchedTransport(std::shared_ptr<tcp::Device> device, int member, int num_members,
                   std::shared_ptr<ActiveTransfers> transfers)
      : tcp::Context(std::move(device), member, num_members), transfers_(std::move(transfers)) {
    setTimeout(kNoLimit);
  }
  void Connect(int other, Socket socket) {
    std::unique_ptr<ConnectedPair> pair;
    do {
      pair = std::make_unique<ConnectedPair>(this, device_.get(), other, kNoLimit);
    } while (!pair->Take(socket));
    pairs_[static_cast<size_t>(other)] = std::move(pair);
  }
  // Returns true if `other` is a member that connects to this one and has not done so yet.
  bool Awaits(int other) const {
    return other > rank && other < size && pairs_[static_cast<size_t>(other)] == nullptr;
  }
  std::unique_ptr<Buffer> createUnboundBuffer(void* data, size_t bytes) override {
    return std::make_unique<WatchedBuffer>(tcp::Context::createUnboundBuffer(data, bytes),
                                           transfers_);
  }

 private:
  const std::shared_ptr<ActiveTransfers> transfers_;
};

class ConnectedContext : public gloo::Context {
 public:
  ConnectedContext(std::shared_ptr<gloo::transport::Device> device,
                   std::shared_ptr<WatchedTransport> transport)
      : gloo::Context(transport->rank, transport->size) {
    device_ = std::move(device);
    transportContext_ = std::move(transport);
    setTimeout(kNoLimit);
  }
};

// What a rank that listens can't do is its own fault.
PeerListener ListenForPeers(const std::string& host) try {
  return PeerListener(host, ReadPortRange());
} catch (const Error& e) {
  throw OwnFault(e.message() + (e.hint().empty() ? "" : "; " + e.hint()));
}

// Returns the layout and the local ranks.
MachineLinks MeetLocalRanks(PeerWatch& watch, const ProcessEnvironment& env, Milliseconds timeout) {
  LocalRanks::Newcomer newcomer(env.local_rank == 0 ? env.local_world_size : 0);
  const Introduction mine = {{HashName(HostName()), env.local_rank, env.local_world_size},
                             newcomer.hello()};
  std::vector<RankPlacement> placements;
  std::vector<LocalRanks::Hello> all;
  for (const std::string& text : watch.Exchange(
           Introduction::kKey, {reinterpret_cast<const char*>(&mine), sizeof mine}, timeout)) {
    Introduction theirs;
    if (text.size() != sizeof theirs) throw CallsDiffer("sizes");
    std::memcpy(&theirs, text.data(), sizeof theirs);
    placements.push_back(theirs.placement);
    all.push_back(theirs.hello);
  }
  MachineLinks links = {MachineLayout(placements), nullptr, {}};
  const auto own_machine = [&] { return links.layout.RanksOf(links.layout.MachineOf(env.rank)); };
  std::vector<LocalRanks::Hello> hellos;
  for (const int other : own_machine()) hellos.push_back(all[static_cast<size_t>(other)]);
  links.local = newcomer.Meet(hellos, links.layout.PlaceOf(env.rank));
  // Each rank tells whether it can read the others' memory. All ranks of a machine must.
  const std::vector<std::string> met =
      watch.Exchange(Introduction::kMet, links.local != nullptr ? "1" : "0", timeout);
  links.layout.SplitUnless([&](const std::vector<int>& ranks) {
    return std::ranges::all_of(ranks,
                               [&](int each) { return met[static_cast<size_t>(each)] == "1"; });
  });
  if (own_machine().size() > 1) return links;
  LocalRanks::Newcomer alone(1);
  links.local = alone.Meet({alone.hello()}, 0);
  if (links.local == nullptr) throw OwnFault("there is no memory to share with other processes");
  return links;
}

}  // namespace

PeerListener::PeerListener(const std::string& host, const std::optional<PortRange>& ports)
    : host_(host), socket_(AtFreePort(ports, [&](int port) { return Listen(host, port); })) {
  std::random_device random;
  for (uint32_t& word : expected_.secret) word = random();
}

std::string PeerListener::address() const {
  return absl::StrCat(host_, " ", LocalPort(socket_), " ", absl::StrJoin(expected_.secret, " "));
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

std::vector<Channel> ConnectGloo(PeerWatch& watch, const MachineLayout& layout, int rank,
                                 const std::string& host, Milliseconds timeout,
                                 std::shared_ptr<ActiveTransfers> transfers) {
  const Deadline deadline = Clock::now() + timeout;
  tcp::attr attributes;
  attributes.hostname = host;
  const auto device = std::make_shared<tcp::Device>(tcp::CreateDeviceAttr(attributes));
  PeerListener listener = ListenForPeers(host);
  const std::vector<std::string> addresses =
      watch.Exchange(PeerListener::kKey, listener.address(), timeout);
  const auto check = [&] { watch.CheckForProblems(); };
  // Each rank connects to those of earlier machines, which need not answer for that.
  std::map<int, std::shared_ptr<WatchedTransport>> transports;  // by channel
  const int machine = layout.MachineOf(rank), num_machines = layout.num_machines();
  int awaited = 0;
  for (const int channel : layout.ChannelsOf(rank)) {
    auto& transport = transports[channel];
    transport = std::make_shared<WatchedTransport>(device, machine, num_machines, transfers);
    for (int other = 0; other < machine; ++other) {
      const int peer = layout.RankAt(other, layout.CarrierOf(channel, other));
      transport->Connect(other, ConnectToPeer(addresses[static_cast<size_t>(peer)],
                                              {channel, machine}, deadline, check));
    }
    awaited += num_machines - 1 - machine;
  }
  while (awaited > 0) {
    auto met = listener.Accept(Milliseconds(200));
    if (!met) {
      check();
      if (Clock::now() >= deadline) throw std::runtime_error("no answer while connecting");
      continue;
    }
    auto& [said, socket] = *met;
    const auto of_channel = transports.find(said.channel);
    if (of_channel == transports.end() || !of_channel->second->Awaits(said.machine)) continue;
    of_channel->second->Connect(said.machine, std::move(socket));
    --awaited;
  }
  std::vector<Channel> channels;
  for (const auto& [channel, transport] : transports)
    channels.emplace_back(channel, std::make_shared<ConnectedContext>(device, transport));
  return channels;
}

MachineLinks LinkMachines(PeerWatch& watch, const ProcessEnvironment& env, Milliseconds timeout,
                          std::shared_ptr<ActiveTransfers> transfers) {
  MachineLinks links = MeetLocalRanks(watch, env, timeout);
  if (links.layout.num_machines() == 1) {
    links.channels.emplace_back(links.layout.PlaceOf(env.rank), nullptr);
    return links;
  }
  // The store knows this rank's address once all ranks have joined.
  std::string host = watch.store().local_host();
  const bool is_ipv6 = host.find(':') != std::string::npos;
  if (const auto chosen = SocketInterfaceAddress(is_ipv6)) host = *chosen;
  links.channels = ConnectGloo(watch, links.layout, env.rank, host, timeout, std::move(transfers));
  return links;
}

}  // namespace lathe
