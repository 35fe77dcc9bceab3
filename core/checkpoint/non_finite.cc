#include "lathe/core/checkpoint/non_finite.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using nlohmann::json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::array<std::pair<std::string_view, double>, 3> kNames = {
    {{"Infinity", kInfinity}, {"-Infinity", -kInfinity}, {"NaN", kNan}}};

std::string_view NameOf(double number) {
  if (std::isnan(number)) return "NaN";
  return number > 0 ? "Infinity" : "-Infinity";
}

// Adds those of `value`, which lies at `place`.
void AddNonFinite(const json& value, const json::json_pointer& place, json& places) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    places[place.to_string()] = NameOf(value.get<double>());
  } else if (value.is_object()) {
    for (const auto& [key, member] : value.items()) AddNonFinite(member, place / key, places);
  } else if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) AddNonFinite(value[i], place / i, places);
  }
}

}  // namespace

json NonFiniteNumbers(const json& values) {
  json places = json::object();
  AddNonFinite(values, json::json_pointer(), places);
  return places;
}

void RestoreNonFinite(const json& places, json& values, const std::string& where) {
  const auto wrong = [&](const std::string& place) {
    return DataLoss(where + ": there is no number to put back at " + DumpJson(json(place)));
  };
  if (!places.is_object()) throw DataLoss(where + ": the list of infinite numbers is no object");
  for (const auto& [place, name] : places.items()) {
    const auto* const known =
        std::find_if(kNames.begin(), kNames.end(),
                     [&, &text = name](const auto& each) { return text == each.first; });
    try {
      json& value = values.at(json::json_pointer(place));
      if (known == kNames.end() || !value.is_null()) throw wrong(place);
      value = known->second;
    } catch (const json::exception&) {
      throw wrong(place);
    }
  }
}

}  // namespace lathe
