// Decides who reports that ranks are lost, and who saves what is left. For that, the launcher keeps
// a record of the ranks of its machine that have ended, and its ranks read it.
//
// All ranks that have lost another one end with the same exit code and nearly the same error. On
// each machine one of them reports it. The launcher looks for the cause elsewhere (see
// rank_supervisor.h). A program asks ShouldReport of distributed/job/error_report.h, which covers
// errors of all kinds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/distributed/liveness/lost_ranks.h"
#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/distributed/rendezvous/socket.h"

namespace lathe {

// The exit code of a rank that ends because it has lost another: EX_TEMPFAIL of sysexits.h.
inline constexpr int kLostRankExitCode = 75;

// The environment variable that tells ranks where the record is.
inline constexpr char kEndedRanksVariable[] = "LATHE_ENDED_RANKS";

// The launcher's side of the record.
class EndedRanksRecord {
 public:
  EndedRanksRecord();
  void Add(int rank, int exit_code);
  // The value of the variable for ranks of a job that meets at this port; "" if there is no record.
  std::string Variable(int port) const;

 private:
  Socket memory_;
};

struct EndedRank {
  int rank, exit_code;  // 128 + signal if one ended it
};
// Returns the ended ranks of this job and machine that are known, in the order in which they ended.
// Returns nullopt if no launcher keeps a record of them. One that belongs to a job around this one,
// which meets at another port, doesn't count.
std::optional<std::vector<EndedRank>> FindEndedRanks(const ProcessEnvironment& environment);
// Returns the first of FindEndedRanks; nullopt if there is none. Ranks that wait for others to join
// ask it: nothing else shows that a rank has ended before it joined.
std::optional<int> FindFirstEndedRank(const ProcessEnvironment& environment);

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
