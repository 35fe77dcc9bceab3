#include "lathe/core/base/isa.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "lathe/core/base/error.h"

namespace lathe::cpu {

namespace {

#ifdef __clang__
// Clang's builtin knows no levels. Every processor with these features has the level's others too.
bool HasLevel3() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
bool HasLevel4() {
  return HasLevel3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#else
bool HasLevel3() { return __builtin_cpu_supports("x86-64-v3"); }
bool HasLevel4() { return __builtin_cpu_supports("x86-64-v4"); }
#endif

}  // namespace

int IsaLevel() {
  static const int level = [] {
    __builtin_cpu_init();
    int has = 2;
    if (HasLevel3()) has = 3;
    if (HasLevel4()) {
      has = __builtin_cpu_supports("avx512bf16") ? 5 : 4;
    }
    const char* cap = std::getenv("LATHE_MAX_ISA");
    if (cap == nullptr || *cap == '\0') return has;
    if (std::strlen(cap) != 1 || *cap < '2' || *cap > '5') {
      throw InvalidArgument(std::string("LATHE_MAX_ISA must be 2, 3, 4 or 5 but is \"") + cap + '"',
                            "set it to a number or unset it");
    }
    return std::min(*cap - '0', has);
  }();
  return level;
}

}  // namespace lathe::cpu
