#include "lathe/core/checkpoint/background_task.h"

#include <absl/status/status.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <exception>
#include <utility>

namespace lathe {

BackgroundTask::~BackgroundTask() {
  if (thread_.joinable()) thread_.join();
}

void BackgroundTask::Start(std::function<void()> work) {
  Check(!active(), "background_task", "the last piece of work has not ended");
  ended_ = false;
  result_ = {};
  // The new thread inherits the mask. Signals are for the thread that has a stack for them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this, work = std::move(work)] {
      // The caller's threads work in step and wait for the slowest, so they come first.
      constexpr int kNice = 15;
      setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
      try {
        work();
      } catch (const Error& e) {
        result_.error = e;
      } catch (const std::exception& e) {
        result_.error = Error(absl::StatusCode::kInternal, e.what());
      }
      ended_ = true;
    });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

std::optional<BackgroundTask::Result> BackgroundTask::TakeResult(bool wait) {
  if (!active() || (!wait && !ended_)) return std::nullopt;
  thread_.join();
  return std::exchange(result_, {});
}

}  // namespace lathe
