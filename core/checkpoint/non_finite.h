// Infinity and NaN in values that are written as JSON. JSON has no such numbers, and its library
// writes null for them. So a file keeps beside its values where they are:
//
//   const nlohmann::json places = NonFiniteNumbers(values);  // {"/best": "Infinity"}
//   ... write values.dump() and places.dump(), and read both ...
//   RestoreNonFinite(places, values, path);
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lathe {

// Returns an object with the JSON pointer (RFC 6901) of each number in `values` that is not finite,
// and "Infinity", "-Infinity" or "NaN". It is empty if all numbers are finite.
nlohmann::json NonFiniteNumbers(const nlohmann::json& values);

// Puts the numbers in the place of nulls in `values`. Throws DataLoss, which begins with `where`,
// if `places` is no such object, or if there is no null in such a place.
void RestoreNonFinite(const nlohmann::json& places, nlohmann::json& values,
                      const std::string& where);

}  // namespace lathe
