#include "lathe/distributed/rendezvous/socket.h"

#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/distributed/rendezvous/wait_time.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Returns null, and says why in `problem`, if that is no name or address.
Addresses Resolve(const std::string& host, int port, int flags, std::string* problem = nullptr) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0 && problem != nullptr) *problem = gai_strerror(code);
  return Addresses(code == 0 ? found : nullptr, &freeaddrinfo);
}

bool IsLoopbackAddress(const sockaddr& address) {
  constexpr uint8_t kNetwork = 127;
  if (address.sa_family == AF_INET6) {
    const in6_addr& ip = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&ip) || (IN6_IS_ADDR_V4MAPPED(&ip) && ip.s6_addr[12] == kNetwork);
  }
  return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == kNetwork;
}

// A machine's own name may mean the loopback on this machine (Debian's /etc/hosts has 127.0.1.1)
// but an address of it on other machines. Names such as ip6-localhost mean the loopback.
bool IsNameForOthers(const std::string& host) {
  return Resolve(host, 0, AI_NUMERICHOST) == nullptr && !absl::StrContains(host, "localhost");
}

// Returns a socket that is bound to the address. IPv6's :: stands for all addresses of IPv4, too.
// If that fails, returns none and sets errno.
Socket BindTo(const addrinfo& address) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1, off = 0;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  return bind(socket.fd(), address.ai_addr, address.ai_addrlen) == 0 ? std::move(socket) : Socket();
}

// Binds to the port at all addresses of this machine, as BindTo does.
Socket BindEverywhere(int port) {
  for (const char* any : {"::", "0.0.0.0"}) {  // the second if the machine has no IPv6
    if (Socket socket = BindTo(*Resolve(any, port, AI_NUMERICHOST))) return socket;
    if (errno == EADDRINUSE) break;
  }
  return Socket();
}

// Returns the inode of the socket that listens on `port` by /proc/net/tcp; "" if there is none.
std::string ListeningInode(int port) {
  const std::string address_end = absl::StrFormat(":%04X", port);
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
      constexpr size_t kAddress = 1, kState = 3, kInode = 9;
      constexpr const char* kListening = "0A";
      if (fields.size() > kInode && fields[kState] == kListening &&
          fields[kAddress].ends_with(address_end))
        return fields[kInode];
    }
  }
  return "";
}

// Returns "process 123 (python3)", or "another process" if the system doesn't tell.
std::string OwnerOfPort(int port) {
  const std::string inode = ListeningInode(port);
  std::error_code code;
  for (const auto& process : fs::directory_iterator("/proc", code)) {
    const std::string id = process.path().filename();
    if (inode.empty() || id.find_first_not_of("0123456789") != std::string::npos) continue;
    std::error_code ignored;
    for (const auto& file : fs::directory_iterator(process.path() / "fd", ignored)) {
      if (fs::read_symlink(file.path(), ignored) != "socket:[" + inode + "]") continue;
      std::string name;
      std::getline(std::ifstream(process.path() / "comm"), name);
      return "process " + id + " (" + name + ")";
    }
  }
  return "another process";
}

Error ListenError(const std::string& host, int port, int error_number) {
  if (error_number == EADDRINUSE) {
    return Error(absl::StatusCode::kUnavailable,
                 "port " + std::to_string(port) + " is taken by " + OwnerOfPort(port),
                 "choose another port with MASTER_PORT");
  }
  if (error_number == EADDRNOTAVAIL) {
    return InvalidArgument(host + " is not an address of this machine, where rank 0 runs",
                           "set MASTER_ADDR to an address of rank 0's machine");
  }
  return Error(absl::ErrnoToStatusCode(error_number),
               AddressText(host, port) + ": cannot listen: " + std::strerror(error_number),
               "choose another port with MASTER_PORT");
}

// Returns false when the deadline has passed. The deadline moves on by the time for which this
// process stood still: the other side may have stood still, too.
bool WaitFor(int fd, short events, Deadline deadline) {
  constexpr std::chrono::milliseconds kSlice(250);
  for (;;) {
    const Clock::time_point start = Clock::now();
    const auto time = std::min(kSlice, TimeLeft(deadline));
    pollfd ready = {.fd = fd, .events = events, .revents = 0};
    const int found = poll(&ready, 1, static_cast<int>(time.count()));
    if (found > 0) return true;
    if (found < 0 && errno != EINTR) return false;
    const Clock::time_point end = Clock::now();
    if (end - start > time + kStandstill) deadline += end - start - time;
    if (found == 0 && end >= deadline) return false;
  }
}

// Returns the address of this end of the connection or, by getpeername, of the other one.
sockaddr_storage AddressOf(const Socket& socket, decltype(&getsockname) name = &getsockname) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  name(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size);
  return address;
}

// Returns true if both ends of the connection are this socket. This happens where nobody listens:
// the system chose that very port for this end (RFC 9293, 3.5).
bool IsConnectedToItself(const Socket& socket) {
  const sockaddr_storage own = AddressOf(socket), peer = AddressOf(socket, &getpeername);
  return std::memcmp(&own, &peer, sizeof own) == 0;
}

// Returns a socket that does not block, connected to the address; none, and sets errno, on failure.
Socket ConnectTo(const addrinfo& address, Deadline deadline) {
  Socket socket(::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                         address.ai_protocol));
  if (!socket) return socket;
  const int on = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(socket.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  int problem = connect(socket.fd(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (problem == EINPROGRESS) {
    socklen_t size = sizeof problem;
    if (WaitFor(socket.fd(), POLLOUT, deadline)) {
      getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &problem, &size);
    } else {
      problem = ETIMEDOUT;
    }
  }
  if (problem == 0 && IsConnectedToItself(socket)) {
    // Otherwise the port would be taken for a minute, and it is the one that rank 0 needs.
    const linger none = {.l_onoff = 1, .l_linger = 0};
    setsockopt(socket.fd(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
    problem = ECONNREFUSED;
  }
  if (problem == 0) return socket;
  socket = Socket();  // closing it may set errno
  errno = problem;
  return socket;
}

// Sends or receives all bytes, as `transfer` does, and waits for `event` in between.
template <typename Byte, typename Transfer>
bool TransferAll(const Socket& socket, Byte* bytes, size_t size, short event, Deadline deadline,
                 const Transfer& transfer) {
  while (size > 0) {
    const ssize_t done = transfer(socket.fd(), bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (done > 0) {
      bytes += done;
      size -= static_cast<size_t>(done);
    } else if (done == 0 || (errno != EAGAIN && errno != EINTR) ||
               !WaitFor(socket.fd(), event, deadline)) {
      return false;
    }
  }
  return true;
}

// Returns true if this process may open no more files. Then names can't be resolved, either, and
// what is said of them doesn't tell why.
bool HasNoFileLeft() {
  const Socket file(open("/", O_RDONLY | O_CLOEXEC));
  return !file && errno == EMFILE;
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

std::string AddressText(const std::string& host, int port) {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Socket Bind(const std::string& host, int port) {
  // A Kubernetes pod's own name can be resolved only some seconds after the pod has started.
  const bool in_pod = std::getenv("KUBERNETES_SERVICE_HOST") != nullptr;
  const Deadline deadline = Clock::now() + std::chrono::seconds(in_pod ? 60 : 0);
  std::string problem;
  Addresses addresses = Resolve(host, port, AI_PASSIVE, &problem);
  while (addresses == nullptr) {
    if (Clock::now() >= deadline)
      throw InvalidArgument(host + ": cannot be resolved: " + problem, "check MASTER_ADDR");
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    addresses = Resolve(host, port, AI_PASSIVE, &problem);
  }
  const bool everywhere = IsLoopbackAddress(*addresses->ai_addr) && IsNameForOthers(host);
  if (Socket socket = everywhere ? BindEverywhere(port) : BindTo(*addresses)) return socket;
  throw ListenError(host, port, errno);
}

Socket Listen(const std::string& host, int port) {
  Socket socket = Bind(host, port);
  if (listen(socket.fd(), SOMAXCONN) != 0) throw ListenError(host, port, errno);
  return socket;
}

int LocalPort(const Socket& socket) {
  // The port lies at the same place in both kinds of addresses.
  const sockaddr_storage address = AddressOf(socket);
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string LocalHost(const Socket& socket) {
  const sockaddr_storage address = AddressOf(socket);
  char host[NI_MAXHOST] = "";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), sizeof address, host, sizeof host,
              nullptr, 0, NI_NUMERICHOST);
  // A socket for both families shows an IPv4 address as one of IPv6.
  return std::string(absl::StripPrefix(host, "::ffff:"));
}

bool IsOnLoopback(const Socket& socket) {
  const sockaddr_storage address = AddressOf(socket);
  return IsLoopbackAddress(reinterpret_cast<const sockaddr&>(address));
}

Socket TryToConnect(const std::string& host, int port, Deadline deadline, std::string& problem) {
  const Addresses addresses = Resolve(host, port, 0, &problem);
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    if (Socket socket = ConnectTo(*a, deadline)) return socket;
    problem = std::strerror(errno);
  }
  return Socket();
}

Socket Connect(const std::string& host, int port, Deadline deadline,
               const std::function<void()>& on_wait) {
  const Clock::time_point start = Clock::now();
  for (;;) {
    std::string problem;
    if (Socket socket = TryToConnect(host, port, deadline, problem)) return socket;
    if (HasNoFileLeft()) {
      throw Error(absl::StatusCode::kUnavailable,
                  AddressText(host, port) +
                      ": no connection can be opened: " + std::strerror(EMFILE) + " (ulimit -n)",
                  "let the process open more files");
    }
    constexpr std::chrono::milliseconds kPause(50);
    if (Clock::now() + kPause >= deadline) {
      throw Error(absl::StatusCode::kUnavailable,
                  AddressText(host, port) + ": rank 0 did not answer within " +
                      SecondsText(Clock::now() - start) + ": " + problem,
                  "start rank 0, too, and check MASTER_ADDR and MASTER_PORT");
    }
    std::this_thread::sleep_for(kPause);
    if (on_wait) on_wait();
  }
}

bool SendAll(const Socket& socket, const void* data, size_t size, Deadline deadline) {
  return TransferAll(socket, static_cast<const char*>(data), size, POLLOUT, deadline, &send);
}

bool ReceiveAll(const Socket& socket, void* data, size_t size, Deadline deadline) {
  return TransferAll(socket, static_cast<char*>(data), size, POLLIN, deadline, &recv);
}

}  // namespace lathe
