#include "lathe/train/checkpoint/shared_folder.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>

namespace lathe {
namespace {

// A file system of several machines may show a new file late.
bool Sees(const std::string& file) {
  constexpr int kTries = 20;
  for (int i = 0; i < kTries; ++i) {
    if (std::error_code code; std::filesystem::exists(file, code)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

}  // namespace

std::vector<int> RanksWithoutFolder(Accelerator& accelerator, const std::string& folder) {
  std::string file;
  if (accelerator.is_main_process()) {
    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    file = folder + "/.lathe_probe." + std::to_string(getpid()) + "." + std::to_string(now);
    std::ofstream probe(file);
    if (!probe.good()) file.clear();
  }
  file = accelerator.GatherObject(file)[0];
  if (file.empty()) return {};
  const std::vector<std::string> seen = accelerator.GatherObject(Sees(file) ? "yes" : "no");
  if (accelerator.is_main_process()) unlink(file.c_str());
  std::vector<int> without;
  for (size_t rank = 0; rank < seen.size(); ++rank) {
    if (seen[rank] == "no") without.push_back(static_cast<int>(rank));
  }
  return without;
}

}  // namespace lathe
