// TCP sockets with deadlines.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>

namespace lathe {

using Deadline = std::chrono::steady_clock::time_point;

// A file descriptor that the destructor closes; -1 for none.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.Release()) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();
  int fd() const { return fd_; }
  // Returns the file descriptor, which is the caller's to close from now on.
  int Release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

// Returns "10.0.0.7:29500", with brackets around an IPv6 address.
std::string AddressText(const std::string& host, int port);

// Listens at an address or name of this machine; port 0 takes a free one. If a name other than
// localhost means the loopback here, it listens at all addresses of this machine. Throws as
// StoreServer does.
Socket Listen(const std::string& host, int port);
// Takes the port without listening: whoever connects is refused.
Socket Bind(const std::string& host, int port);
int LocalPort(const Socket& socket);
std::string LocalHost(const Socket& socket);  // as a numeric address
bool IsOnLoopback(const Socket& socket);      // true if other machines can't reach that address

// Tries each address of the host once. Returns none, and says why in `problem`, if nobody answers.
Socket TryToConnect(const std::string& host, int port, Deadline deadline, std::string& problem);
// Tries again until somebody listens there. Throws Unavailable with the last reason when the
// deadline has passed, or at once if this process may open no more files. Calls `on_wait`, which
// may throw, between two tries.
Socket Connect(const std::string& host, int port, Deadline deadline,
               const std::function<void()>& on_wait = {});

// Send or receive all the bytes. Return false if the other side is gone or the deadline has passed.
bool SendAll(const Socket& socket, const void* data, size_t size, Deadline deadline);
bool ReceiveAll(const Socket& socket, void* data, size_t size, Deadline deadline);

}  // namespace lathe
