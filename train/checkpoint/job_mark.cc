#include "lathe/train/checkpoint/job_mark.h"

#include <sys/types.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/core/files/regular_file.h"
#include "lathe/core/json/json_nesting.h"
#include "lathe/core/json/json_text.h"
#include "lathe/train/support/output_dir.h"

namespace lathe {
namespace {

constexpr const char* kRestartVariables[] = {kRestartsVariable, kMaxRestartsVariable};

bool IsSet(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != 0;
}

bool MayBeStartedAgain() { return IsSet(kRestartsVariable) || IsSet(kMaxRestartsVariable); }

std::string ProcessFile(pid_t process, const char* name) {
  return ReadFile("/proc/" + std::to_string(process) + "/" + name);
}

// Returns true if a launcher with restarts has started the process.
bool IsLaunched(pid_t process) {
  const std::string variables = '\0' + ProcessFile(process, "environ");
  for (const char* name : kRestartVariables) {
    const std::string beginning = '\0' + std::string(name) + "=";
    if (variables.find(beginning) != std::string::npos) return true;
  }
  return false;
}

struct ProcessStat {
  pid_t parent = 0;
  std::string start;  // in ticks since the machine has started
};

// Reads what proc(5) calls fields 4 and 22. The name before them may hold blanks and brackets.
ProcessStat StatOf(pid_t process) {
  const std::string text = ProcessFile(process, "stat");
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  ProcessStat stat;
  std::string field;
  for (int number = 3; number <= 22 && fields >> field; ++number) {
    if (number == 4) stat.parent = static_cast<pid_t>(std::atoi(field.c_str()));
    if (number == 22) stat.start = field;
  }
  return stat;
}

std::string FindLauncher() try {
  std::string boot = ReadFile("/proc/sys/kernel/random/boot_id");
  boot.erase(boot.find_last_not_of(" \n") + 1);
  pid_t process = getppid();
  while (process > 0 && IsLaunched(process)) process = StatOf(process).parent;
  if (process <= 0) return "";
  const std::string start = StatOf(process).start;
  return boot + " " + std::to_string(process) + " " + start;
} catch (const Error&) {
  return "";  // /proc can't be read
}

std::string BootOf(const std::string& launcher) { return launcher.substr(0, launcher.find(' ')); }

// Returns the text under the key; "" if there is none.
std::string TextAt(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

JobIdentity OwnIdentity() {
  JobIdentity identity{ReadProcessEnvironment().job, ""};
  if (MayBeStartedAgain()) identity.launcher = FindLauncher();
  return identity;
}

bool IsSameJob(const JobIdentity& then, const JobIdentity& now) {
  if (then.job != now.job) return false;
  if (!then.launcher.empty() && BootOf(then.launcher) == BootOf(now.launcher))
    return then.launcher == now.launcher;
  return !now.job.empty() && now.job != "none";
}

JobIdentity IdentityIn(const nlohmann::json& object) {
  if (!object.is_object()) return {};
  return {TextAt(object, kJobKey), TextAt(object, kLauncherKey)};
}

void MarkFolder(const std::string& dir) {
  if (!MayBeStartedAgain()) return;
  const JobIdentity own = OwnIdentity();
  const nlohmann::json mark = {{kJobKey, own.job}, {kLauncherKey, own.launcher}};
  WriteFileAtomically(dir + "/" + kJobMark, DumpJson(mark, 2) + "\n");
}

bool IsOwnFolder(const std::string& dir) {
  const JobIdentity own = OwnIdentity();
  try {
    const std::string path = dir + "/" + kJobMark;
    const std::string text = ReadRegularFile(path);
    CheckJsonNesting(text, path);
    if (IsSameJob(IdentityIn(ParseJsonOrDiscard(text)), own)) return true;
  } catch (const Error&) {
    // There is no mark that can be read.
  }
  for (const NumberedFolder& checkpoint : ListNumberedFolders(dir, "checkpoint-")) {
    try {
      if (IsSameJob(IdentityIn(ReadManifest(checkpoint.path).about), own)) return true;
    } catch (const Error&) {
      // A damaged one proves nothing.
    }
  }
  return false;
}

void RemoveMark(const std::string& dir) {
  std::error_code ignored;
  std::filesystem::remove(dir + "/" + kJobMark, ignored);
}

}  // namespace lathe
