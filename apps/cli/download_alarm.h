// What a command of `lathe` does if a signal ends it in the middle of a download. The command runs
// no loop that asks for signals, so the signal ends the process, as it always does.
//
//   {
//     const DownloadAlarm alarm;
//     folder = ResolveCheckpoint(name, parts).folder;
//   }
#pragma once

#include <signal.h>

#include <optional>
#include <utility>
#include <vector>

#include "lathe/train/support/interrupt.h"

namespace lathe {

// While one exists, a signal that ends the process first says on standard error how to go on with
// the download, if there is one. Afterwards signals work as they did before.
class DownloadAlarm {
 public:
  DownloadAlarm();
  ~DownloadAlarm();
  DownloadAlarm(const DownloadAlarm&) = delete;
  DownloadAlarm& operator=(const DownloadAlarm&) = delete;

 private:
  std::vector<std::pair<int, struct sigaction>> before_;  // what each signal did
  std::optional<InterruptAlarm> alarm_;
};

}  // namespace lathe
