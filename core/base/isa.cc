#include "lathe/core/base/isa.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "lathe/core/base/error.h"

namespace lathe::cpu {

int IsaLevel() {
  static const int level = [] {
    __builtin_cpu_init();
    int has = 2;
    if (__builtin_cpu_supports("x86-64-v3")) has = 3;
    if (__builtin_cpu_supports("x86-64-v4")) {
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
