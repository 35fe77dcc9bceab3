#include "lathe/core/base/gemm_options.h"

#include <cstdlib>
#include <mutex>
#include <string>

namespace lathe {
namespace {

bool IsSet(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::string(value) == "1";
}

std::mutex mutex;

GemmOptions& TheOptions() {
  static GemmOptions options = {.allow_tf32 = IsSet("LATHE_ALLOW_TF32"),
                                .tune = IsSet("LATHE_TUNE")};
  return options;
}

}  // namespace

GemmOptions GetGemmOptions() {
  const std::lock_guard lock(mutex);
  return TheOptions();
}

void SetGemmOptions(const GemmOptions& options) {
  const std::lock_guard lock(mutex);
  TheOptions() = options;
}

void AllowTf32(bool allow) {
  const std::lock_guard lock(mutex);
  TheOptions().allow_tf32 = allow;
}

void TuneGemms(bool tune) {
  const std::lock_guard lock(mutex);
  TheOptions().tune = tune;
}

void UseDeterministicGemms(bool deterministic) {
  const std::lock_guard lock(mutex);
  TheOptions().deterministic = deterministic;
}

}  // namespace lathe
