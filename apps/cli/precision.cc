#include "lathe/apps/cli/precision.h"

#include <utility>

#include "lathe/core/base/error.h"

namespace lathe {

std::optional<std::string> GivenPrecision(const FlagTable& flags,
                                          const std::string& mixed_precision, bool bf16,
                                          bool fp16) {
  if (bf16 && fp16) {
    throw InvalidArgument("--bf16 and --fp16 contradict each other", "leave one of them out");
  }
  std::optional<std::string> given;
  if (flags.given("mixed_precision")) given = mixed_precision;
  for (const auto& [name, on] : {std::pair("bf16", bf16), std::pair("fp16", fp16)}) {
    if (!flags.given(name)) continue;
    if (flags.given("mixed_precision") && on != (mixed_precision == name)) {
      throw InvalidArgument(
          "--" + std::string(name) + " and --mixed_precision contradict each other",
          "leave one of them out");
    }
    if (on) given = name;
    if (!given) given = mixed_precision;
  }
  return given;
}

}  // namespace lathe
