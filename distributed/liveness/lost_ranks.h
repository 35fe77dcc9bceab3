// What is known of ranks that are lost. It travels inside lathe::Error as its detail, and to the
// other ranks through the store. Code that handles the error reads it there; the message is for
// people alone.
//
//   // Null if the error is about something else.
//   if (const LostRanks* lost = FindLostRanks(error)) ...
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"

namespace lathe {

struct LostRanks {
  enum class Kind {
    kEnded,   // the process has died, or has ended while others still need it
    kHangs,   // it does not answer: it hangs, or the network is cut
    kFailed,  // it can't go on for a reason of its own, which it has told the others
  };
  std::vector<int> ranks = {};  // never empty in an error
  Kind kind = Kind::kEnded;
  std::string phase = "";  // what the first of them was doing, as "training"; "" if that is unknown
  // True if the error's hint says more than what to do, such as what was saved.
  bool hint_was_extended = false;

  bool hangs() const { return kind == Kind::kHangs; }
  bool Includes(int rank) const;
};

// Returns what the error says of lost ranks; null if it is about something else. A rank is never
// told that it is lost itself.
inline const LostRanks* FindLostRanks(const Error& error) { return error.detail<LostRanks>(); }

// What keeps the ranks of a group from going on.
struct GroupProblem {
  std::string text;                    // for people; "" if all is well
  std::optional<LostRanks> lost = {};  // nullopt if no rank is known to be lost

  bool empty() const { return text.empty(); }
  // Returns true if it is that this rank failed for a reason of its own.
  bool IsFaultOf(int rank) const;
};

// Return the problems "rank 2 has ended while training" and "rank 2 does not answer while
// training". If the phase is "", the words from "while" on are missing.
GroupProblem EndedRankProblem(int rank, const std::string& phase);
GroupProblem HangingRankProblem(int rank, const std::string& phase);
// Returns the problem "rank 2: out of device memory". The rank itself gives the reason.
GroupProblem FailedRankProblem(int rank, const std::string& reason);

// Returns a problem as a value in the store.
std::string Serialize(const GroupProblem& problem);
GroupProblem ParseGroupProblem(const std::string& value);

// The hint in a process group's errors.
inline constexpr char kLostRankHint[] = "look at what that rank printed last";

// Returns `[all_reduce] rank 2 can't go on: rank 0 has ended`, Unavailable, for rank `self`. The
// error carries the problem's LostRanks, unless that includes `self`.
Error CannotGoOnError(const char* what, int self, const GroupProblem& problem,
                      const char* hint = kLostRankHint);
// Returns the error with `more` at the end of its hint. Sets hint_was_extended in the LostRanks
// that it carries, if any.
Error AddToHint(const Error& error, const std::string& more);

}  // namespace lathe
