#include "lathe/core/trackers/tracker_values.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "lathe/core/json/json_text.h"

namespace lathe {

double SecondsSince1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string Utf8Text(const std::string& text) {
  return ParseJson(DumpJson(nlohmann::json(text))).get<std::string>();
}

}  // namespace lathe
