#include "lathe/distributed/rendezvous/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>

namespace lathe {
namespace {

namespace fs = std::filesystem;

// Counts the entries of a list such as "2,0" up to the first one that can't be a device. CUDA shows
// a program the devices of these entries.
int CountListed(const std::string& list) {
  std::istringstream in(list);
  int count = 0;
  for (std::string id; std::getline(in, id, ',') && !id.empty() && !id.starts_with('-');) ++count;
  return count;
}

}  // namespace

std::string HostName() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

int UsableCores() {
  std::array<cpu_set_t, 16> cores{};  // 1024 cores each
  if (sched_getaffinity(0, sizeof cores, cores.data()) != 0) return 1;
  return std::max(CPU_COUNT_S(sizeof cores, cores.data()), 1);
}

int InstalledGpus(const std::string& driver_folder) {
  std::error_code code;
  int count = 0;
  for (fs::directory_iterator gpu(driver_folder, code), end; !code && gpu != end;
       gpu.increment(code)) {
    ++count;
  }
  return count;
}

int VisibleGpus(const std::string& driver_folder) {
  const int count = InstalledGpus(driver_folder);
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? count : std::min(count, CountListed(visible));
}

}  // namespace lathe
