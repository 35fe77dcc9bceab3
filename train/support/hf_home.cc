#include "lathe/train/support/hf_home.h"

#include <cstdlib>

namespace lathe {

std::string HuggingFaceHome() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  std::string home = variable("HF_HOME");
  if (home.empty()) {
    const std::string cache = variable("XDG_CACHE_HOME");
    home = (cache.empty() ? variable("HOME") + "/.cache" : cache) + "/huggingface";
  }
  if (home.starts_with("~/")) home = variable("HOME") + home.substr(1);
  return home;
}

}  // namespace lathe
