// Whole numbers in JSON. The JSON library's own conversion gives another number, or is undefined,
// if the value has a fraction or does not fit.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

namespace lathe {

// Returns the value if it is a whole number in [low, high], written without a fraction or an
// exponent. Returns nullopt for anything else.
inline std::optional<int64_t> WholeNumber(const nlohmann::json& value,
                                          int64_t low = std::numeric_limits<int64_t>::min(),
                                          int64_t high = std::numeric_limits<int64_t>::max()) {
  if (!value.is_number_integer()) return std::nullopt;
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (value.is_number_unsigned() && value.get<uint64_t>() > kMost) return std::nullopt;
  const auto number = value.get<int64_t>();
  return low <= number && number <= high ? std::optional(number) : std::nullopt;
}

}  // namespace lathe
