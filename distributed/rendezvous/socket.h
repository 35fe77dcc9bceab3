// TCP sockets with deadlines.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

namespace lathe {

using Deadline = std::chrono::steady_clock::time_point;

// A file descriptor that is closed at the end; -1 for none.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

// "10.0.0.7:29500", with brackets around an IPv6 address.
std::string AddressText(const std::string& host, int port);

// Listens at an address or name of this machine, or at all its addresses if the name leads to the
// loopback and isn't localhost; port 0 takes a free one. Throws as StoreServer does.
Socket Listen(const std::string& host, int port);
// The same without listening: whoever connects is refused.
Socket Bind(const std::string& host, int port);
int LocalPort(const Socket& socket);
std::string LocalHost(const Socket& socket);  // as a number
bool IsOnLoopback(const Socket& socket);      // whether that is out of other machines' reach

// Tries again until somebody listens there. Throws Unavailable with the last reason. on_wait is
// called between two tries, and may throw.
Socket Connect(const std::string& host, int port, Deadline deadline,
               const std::function<void()>& on_wait = {});

// All `size` bytes, or false: the other side is gone or the deadline has passed.
bool SendAll(const Socket& socket, const void* data, size_t size, Deadline deadline);
bool ReceiveAll(const Socket& socket, void* data, size_t size, Deadline deadline);

}  // namespace lathe
