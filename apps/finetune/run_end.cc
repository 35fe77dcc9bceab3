#include "lathe/apps/finetune/run_end.h"

#include <unistd.h>

#include <string>

#include "lathe/apps/cli/report_error.h"
#include "lathe/distributed/job/error_report.h"
#include "lathe/distributed/liveness/lost_ranks.h"
#include "lathe/distributed/liveness/who_reports.h"
#include "lathe/train/support/interrupt.h"

namespace lathe {

int EndInterrupted(Accelerator& accelerator) {
  ProcessGroup& group = accelerator.group();
  const auto key = [](int rank) { return "interrupted/" + std::to_string(rank); };
  int agreed = 0;
  try {
    group.PostMessage(key(group.rank()), std::to_string(InterruptSignal()));
    for (int rank = 0; rank < group.size(); ++rank) {
      const int signal_number = std::stoi(group.AwaitMessage(key(rank), rank));
      if (agreed == 0) agreed = signal_number;
    }
  } catch (const Error&) {
    agreed = InterruptSignal();  // another rank has ended already
  }
  return InterruptedExitCode(agreed);
}

void SetRankPrefix() {
  if (const int rank = ReadProcessEnvironment().rank; rank > 0) {
    SetErrorPrefix("rank " + std::to_string(rank) + ": ");
  }
}

int WithErrorsReportedOnce(const std::function<int()>& body) {
  try {
    return body();
  } catch (const UsageError& e) {
    if (!ShouldReport(e, ErrorSource::kCommandLine)) throw ReportedElsewhere{kUsageExitCode};
    SetRankPrefix();
    throw;
  } catch (const LostRankError& e) {
    return ReportErrors(kLostRankExitCode, [&]() -> int { throw e; });
  } catch (const Error& e) {
    const int exit_code = FindLostRanks(e) == nullptr ? kErrorExitCode : kLostRankExitCode;
    if (!ShouldReport(e)) throw ReportedElsewhere{exit_code};
    return ReportErrors(exit_code, [&]() -> int { throw e; });
  }
}

LostRankAlarm::LostRankAlarm(ProcessGroup& group) : group_(group) {
  group_.SetAlarm([](const Error& lost) {
    _exit(ReportErrors(kErrorExitCode,
                       [&] { return WithErrorsReportedOnce([&]() -> int { throw lost; }); }));
  });
}

LostRankAlarm::~LostRankAlarm() { group_.SetAlarm(nullptr); }

}  // namespace lathe
