// A server that sends the same bytes to every client, whatever it asks.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "lathe/distributed/rendezvous/socket.h"

namespace lathe::fuzz {

inline constexpr char kLoopback[] = "127.0.0.1";

class Impostor {
 public:
  Impostor() : listener_(Listen(kLoopback, 0)), thread_([this] { Serve(); }) {}
  ~Impostor() {
    shutdown(listener_.fd(), SHUT_RDWR);
    thread_.join();
  }
  int port() const { return LocalPort(listener_); }
  // Sets what the next clients get.
  void Say(std::string_view bytes) {
    const std::lock_guard lock(mutex_);
    bytes_ = bytes;
  }

 private:
  void Serve() {
    for (;;) {
      pollfd ready = {.fd = listener_.fd(), .events = POLLIN, .revents = 0};
      if (poll(&ready, 1, -1) < 0) continue;
      const Socket client(accept(listener_.fd(), nullptr, nullptr));
      if (!client) return;  // the listener was shut down
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
      std::string bytes;
      {
        const std::lock_guard lock(mutex_);
        bytes = bytes_;
      }
      SendAll(client, bytes.data(), bytes.size(), deadline);
      shutdown(client.fd(), SHUT_WR);
      // What the client asks is read until it goes. A connection that is closed before would be
      // reset, and the client would not see the answer.
      for (char asked; ReceiveAll(client, &asked, 1, deadline);) {
      }
    }
  }

  Socket listener_;
  std::mutex mutex_;
  std::string bytes_;
  std::thread thread_;
};

}  // namespace lathe::fuzz
