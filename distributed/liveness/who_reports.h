// Decides who reports that ranks are lost, and who saves what is left.
//
// All ranks that have lost another one end with the same exit code and nearly the same error. On
// each machine one of them reports it. The launcher looks for the cause elsewhere (see
// rank_supervisor.h). A program asks ShouldReport of distributed/job/error_report.h, which covers
// errors of all kinds.
#pragma once

#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/distributed/liveness/lost_ranks.h"
#include "lathe/distributed/rendezvous/environment.h"

namespace lathe {

// The exit code of a rank that ends because it has lost another: EX_TEMPFAIL of sysexits.h.
inline constexpr int kLostRankExitCode = 75;

// LocalRanks returns the ranks on this process's machine, ascending. SetLocalRanks sets them;
// before, they are a guess from the environment, which assumes that they are consecutive.
std::vector<int> LocalRanks();
void SetLocalRanks(std::vector<int> ranks);

// Returns true if this rank is to report its error, which carries this LostRanks. The lowest rank
// that is left on each machine reports it. It doesn't if the error only says that ranks of the same
// machine have ended, and all of them have reported why. May take seconds if ranks hang.
bool ShouldReportLostRanks(const LostRanks& lost, const ProcessEnvironment& environment);

// Call it when `error` says that the main process, rank 0, is lost, and perhaps others. Returns
// true if this rank is to save without it: the first rank that is left on each machine does. The
// launcher learns a moment later which ranks ended together with the main process, so this looks
// for a while.
bool ShouldSaveForMain(const Error& error, const ProcessEnvironment& environment);

// Handles an error that most ranks have alike, before they have found each other. Returns true if
// this machine's local main process has failed with its own error, so it is reported already.
// Waits up to one and a half seconds for the launcher to record it. Returns false in the local main
// process itself. Elsewhere returns `without_record` if no launcher keeps a record.
bool IsReportedByLocalMain(const ProcessEnvironment& environment, bool without_record);

}  // namespace lathe
