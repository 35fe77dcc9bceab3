// Helpers for tests of the store and its sockets.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/distributed/rendezvous/store.h"

namespace lathe {

inline constexpr char kHost[] = "127.0.0.1";

// Returns the message of the Error that `body` throws. Expects that it has this code and a hint.
inline std::string MessageOf(const std::function<void()>& body, absl::StatusCode code) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.message();
    EXPECT_NE(e.hint(), "") << e.message();
    return e.message();
  }
  return "nothing was thrown";
}

// A process that serves a store, for tests that stop it and let it go on.
class StoreProcess {
 public:
  StoreProcess() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    process_ = fork();
    if (process_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const StoreServer server(kHost, 0, "job");
      const int port = server.port();
      if (write(ends[1], &port, sizeof port) != sizeof port) _exit(1);
      for (;;) pause();
    }
    close(ends[1]);
    EXPECT_EQ(read(ends[0], &port_, sizeof port_), static_cast<ssize_t>(sizeof port_));
    close(ends[0]);
  }
  ~StoreProcess() {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  StoreProcess(const StoreProcess&) = delete;
  StoreProcess& operator=(const StoreProcess&) = delete;

  int port() const { return port_; }
  // Returns once all of its threads stand still.
  void Stop() const {
    kill(process_, SIGSTOP);
    waitpid(process_, nullptr, WUNTRACED);
  }
  void Continue() const { kill(process_, SIGCONT); }

 private:
  pid_t process_ = 0;
  int port_ = 0;
};

}  // namespace lathe
