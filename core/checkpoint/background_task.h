// BackgroundTask: one piece of work at a time on a thread beside the caller's.
//
//   BackgroundTask task;
//   task.Start([&] { WriteFiles(); });
//   if (auto done = task.TakeResult()) ...  // has it ended? with an error?
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "lathe/core/base/error.h"

namespace lathe {

class BackgroundTask {
 public:
  BackgroundTask() = default;
  ~BackgroundTask();  // waits
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  // How a piece of work has ended.
  struct Result {
    std::optional<Error> error;
  };
  // The result of the work before it must have been taken. Signals are not delivered to the thread,
  // and it gets a processor mostly when nothing else wants one (nice 15).
  void Start(std::function<void()> work);
  // Returns true from Start until the result is taken.
  bool active() const { return thread_.joinable(); }
  // Returns the result once, if the work has ended. `wait`: waits for its end.
  std::optional<Result> TakeResult(bool wait = false);

 private:
  std::thread thread_;
  std::atomic<bool> ended_ = false;
  Result result_;  // may be read once ended_ is true
};

}  // namespace lathe
