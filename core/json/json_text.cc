#include "lathe/core/json/json_text.h"

#include <nlohmann/json.hpp>

namespace lathe {
namespace {

constexpr auto kReplace = nlohmann::json::error_handler_t::replace;

}  // namespace

nlohmann::json ParseJson(std::string_view text) { return nlohmann::json::parse(text); }

nlohmann::json ParseJsonOrDiscard(std::string_view text) {
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string DumpJson(const nlohmann::json& value, int indent, bool ensure_ascii) {
  return value.dump(indent, ' ', ensure_ascii, kReplace);
}

std::string DumpJson(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, kReplace);
}

}  // namespace lathe
