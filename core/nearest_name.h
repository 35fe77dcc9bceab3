// What a misspelt name was probably meant to be.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lathe {

// The nearest of the candidates; nullopt if none is near enough for a slip.
std::optional<std::string> NearestName(const std::string& word,
                                       const std::vector<std::string>& candidates);

}  // namespace lathe
