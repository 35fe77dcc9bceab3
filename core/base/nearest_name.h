// Suggests the name that a misspelt name was probably meant to be.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lathe {

// Returns the nearest candidate; nullopt if none is near enough for a typing error.
std::optional<std::string> NearestName(const std::string& word,
                                       const std::vector<std::string>& candidates);

}  // namespace lathe
