// How a rank of `finetune` ends when a signal, a lost rank or an error ends its job. All ranks end
// with the same exit code, and one of them reports.
#pragma once

#include <functional>

#include "lathe/distributed/accelerator.h"

namespace lathe {

// Returns the exit code of a job that a signal ended. The signal may have come to some ranks only,
// say to those of one machine. All ranks end with the signal of the lowest rank that got one. The
// main process may take long to save before it comes here.
int EndInterrupted(Accelerator& accelerator);

// Puts this rank's number before the errors that it prints, unless it is rank 0.
void SetRankPrefix();

// Runs `body` and returns its result. If several ranks fail with the same error, one reports it. If
// a rank is lost, one rank on each machine reports that. Throws ReportedElsewhere, or the error
// that is this rank's to report.
int WithErrorsReportedOnce(const std::function<int()>& body);

// While one exists, this process ends as soon as another rank is lost, whatever it waits for.
class LostRankAlarm {
 public:
  explicit LostRankAlarm(ProcessGroup& group);
  ~LostRankAlarm();
  LostRankAlarm(const LostRankAlarm&) = delete;
  LostRankAlarm& operator=(const LostRankAlarm&) = delete;

 private:
  ProcessGroup& group_;
};

}  // namespace lathe
