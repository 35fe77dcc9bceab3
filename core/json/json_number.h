// Whole numbers in JSON. The JSON library's own conversion gives another number, or is undefined,
// if the value has a fraction or does not fit.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>

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

// Returns the value if it is a whole number that fits. Throws nlohmann::json::type_error, as the
// library's own conversions do, if it has a fraction or an exponent or is no number at all.
template <typename T>
T GetWholeNumber(const nlohmann::json& value) {
  using Json = nlohmann::json;
  if constexpr (std::is_same_v<T, uint64_t>) {
    return value.get_ref<const Json::number_unsigned_t&>();
  } else {
    const std::optional<int64_t> number =
        WholeNumber(value, std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
    return number ? static_cast<T>(*number) : Json().get<T>();  // a null throws
  }
}

}  // namespace lathe
