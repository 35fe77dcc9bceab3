#include "lathe/apps/cli/download_alarm.h"

#include <iostream>
#include <string>

#include "lathe/core/hub/transfer_progress.h"

namespace lathe {

DownloadAlarm::DownloadAlarm() {
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    struct sigaction action {};
    sigaction(signal_number, nullptr, &action);
    before_.emplace_back(signal_number, action);
  }
  InstallInterruptHandler();
  alarm_.emplace([](int signal_number) {
    const std::string download = AbandonDownload();
    if (!download.empty()) std::cerr << download << std::endl;
    signal(signal_number, SIG_DFL);
    raise(signal_number);  // a shell's loop ends only if the signal has ended its command
  });
}

DownloadAlarm::~DownloadAlarm() {
  alarm_.reset();
  for (const auto& [signal_number, action] : before_) sigaction(signal_number, &action, nullptr);
  if (Interrupted()) raise(InterruptSignal());  // it came when the alarm was over
}

}  // namespace lathe
