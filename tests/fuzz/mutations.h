// Changes to inputs, for tests without libFuzzer: a damaged byte, a wrong length, a part that is
// missing or comes twice.
#pragma once

#include <random>
#include <string>
#include <vector>

namespace lathe::fuzz {

// Returns a copy of one of `inputs`, which must not be empty, with one to four changes. It follows
// from the state of `random` alone.
std::string Mutate(const std::vector<std::string>& inputs, std::mt19937_64& random);

}  // namespace lathe::fuzz
