// Tells which job has filled an output folder. A job that its launcher has started again may go on
// in its own folder, and must leave those of others alone.
//
//   MarkFolder("out");            // before the job writes anything there
//   if (IsOwnFolder("out")) ...   // in the same job, after a restart
//   RemoveMark("out");            // once all results are there
//
// The name of a job doesn't prove much. torchrun calls each one "none" unless it is told a name,
// and `lathe launch` names one on several machines by its address. So a job is also known by its
// launcher on this machine, a process that outlives the restarts.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lathe/distributed/rendezvous/environment.h"

namespace lathe {

// Each member is "" if it isn't known.
struct JobIdentity {
  std::string job;       // ProcessEnvironment::job
  std::string launcher;  // "BOOT PROCESS START": of the process that starts the job's ranks
};

// Returns the identity of this process's job. The launcher is the nearest ancestor that no launcher
// with restarts has started.
JobIdentity OwnIdentity();

// Returns true if both are the same job. Launchers on one machine (with one BOOT) decide. If they
// are not known, or on different machines, the name decides, unless it is torchrun's "none".
bool IsSameJob(const JobIdentity& then, const JobIdentity& now);

// The keys of an identity in JSON, in a mark and in a manifest's `about`.
inline constexpr char kJobKey[] = "job", kLauncherKey[] = "launcher";
// Returns the identity in a JSON object. Members that it lacks are "".
JobIdentity IdentityIn(const nlohmann::json& object);

// Leaves a durable mark in the folder, whole or not at all. Does nothing if this job's launcher
// never starts it again. Throws FileError.
void MarkFolder(const std::string& dir);

// Returns true if this job has left its mark in the folder, or a checkpoint.
bool IsOwnFolder(const std::string& dir);

// Removes the mark of any job. Errors are ignored.
void RemoveMark(const std::string& dir);

}  // namespace lathe
