// What a server answers to a client of the rendezvous store: it may be another program.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <string>
#include <thread>

#include "lathe/core/base/error.h"
#include "lathe/distributed/rendezvous/socket.h"
#include "lathe/distributed/rendezvous/store.h"
#include "lathe/tests/fuzz/fuzzer.h"

namespace {

constexpr char kHost[] = "127.0.0.1";

// Sends the same bytes to every client, and says no more.
class Impostor {
 public:
  Impostor() : listener_(lathe::Listen(kHost, 0)), thread_([this] { Serve(); }) {}
  ~Impostor() {
    shutdown(listener_.fd(), SHUT_RDWR);
    thread_.join();
  }
  int port() const { return lathe::LocalPort(listener_); }
  void Say(std::string_view bytes) {
    const std::lock_guard lock(mutex_);
    bytes_ = bytes;
  }

 private:
  void Serve() {
    for (;;) {
      pollfd ready = {.fd = listener_.fd(), .events = POLLIN, .revents = 0};
      if (poll(&ready, 1, -1) < 0) continue;
      const lathe::Socket client(accept(listener_.fd(), nullptr, nullptr));
      if (!client) return;  // the listener was shut down
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
      std::string bytes;
      {
        const std::lock_guard lock(mutex_);
        bytes = bytes_;
      }
      lathe::SendAll(client, bytes.data(), bytes.size(), deadline);
      shutdown(client.fd(), SHUT_WR);
      // What the client asks is read until it goes. A connection that is closed before would be
      // reset, and the client would not see the answer.
      for (char asked; lathe::ReceiveAll(client, &asked, 1, deadline);) {
      }
    }
  }

  lathe::Socket listener_;
  std::mutex mutex_;
  std::string bytes_;
  std::thread thread_;
};

void Converse(int port) {
  constexpr std::chrono::milliseconds kTimeout(5000);
  lathe::Store store(kHost, port, "job", kTimeout, "", [] {
    throw lathe::InvalidArgument("the greeting is cut off");  // instead of another try
  });
  store.SetPatience(kTimeout);
  lathe::fuzz::CallAll({[&] { store.Set("key", "value"); }, [&] { store.Get("key", kTimeout); },
                        [&] { store.Add("counter", 1); },
                        [&] {
                          store.Leave({{"key", "value"}});
                        }});
}

}  // namespace

void lathe::fuzz::ReadInput(std::string_view input) {
  static Impostor impostor;
  // The input as the greeting and all that follows it. A client that gets no whole greeting waits
  // before it tries again. So inputs that are too short for one are not given in this way.
  constexpr size_t kGreeting = 24;
  const auto all = [&] {
    if (input.size() < kGreeting) throw InvalidArgument("too short for a greeting");
    impostor.Say(input);
    Converse(impostor.port());
  };
  const auto after_greeting = [&] {
    std::string bytes = "1HTL\1";  // the magic number, and that all is well
    bytes.resize(kGreeting);
    impostor.Say(bytes.append(input));
    Converse(impostor.port());
  };
  CallAll({all, after_greeting});
}
