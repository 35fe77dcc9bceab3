#include "lathe/apps/short_waits.h"

#include <omp.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace lathe {

void WaitBriefly(char** argv) {
  constexpr char kName[] = "GOMP_SPINCOUNT";
  // About 0.1 ms: longer than threads wait for each other where both have a core.
  constexpr char kTurns[] = "10000";
  if (std::getenv(kName) != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr ||
      omp_get_max_threads() == 1) {
    return;
  }
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error || setenv(kName, kTurns, 0) != 0) return;
  execv(program.c_str(), argv);
  unsetenv(kName);
}

}  // namespace lathe
