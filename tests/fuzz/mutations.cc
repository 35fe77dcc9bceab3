#include "lathe/tests/fuzz/mutations.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string_view>

namespace lathe::fuzz {
namespace {

using Random = std::mt19937_64;

// Returns a number below `limit`, which must be above 0. std::uniform_int_distribution differs
// between libraries.
size_t Below(size_t limit, Random& random) { return random() % limit; }

// Numbers at which readers go wrong: of sizes, counts, offsets and ids.
constexpr std::array<uint64_t, 14> kNumbers = {0,
                                               1,
                                               0x7F,
                                               0x80,
                                               0xFF,
                                               0x7FFF,
                                               0x8000,
                                               0x7FFFFFFF,
                                               0x80000000,
                                               0xFFFFFFFF,
                                               0x7FFFFFFFFFFFFFFF,
                                               0x8000000000000000,
                                               ~uint64_t{0},
                                               100'000'000};
constexpr std::array<std::string_view, 16> kTexts = {"0",
                                                     "-1",
                                                     "4294967296",
                                                     "9223372036854775807",
                                                     "18446744073709551615",
                                                     "1e30",
                                                     "-1e30",
                                                     "0.5",
                                                     "null",
                                                     "true",
                                                     "\"\"",
                                                     "[]",
                                                     "{}",
                                                     "\n",
                                                     "\"",
                                                     "[[[[[["};

// Overwrites 1, 2, 4 or 8 bytes with a number of kNumbers.
void PutNumber(std::string& input, Random& random) {
  const size_t width = size_t{1} << Below(4, random);
  if (input.size() < width) return;
  const uint64_t number = kNumbers[Below(kNumbers.size(), random)];
  std::memcpy(input.data() + Below(input.size() - width + 1, random), &number, width);
}

// Puts a text of kTexts in the place of a run of digits and letters.
void PutText(std::string& input, Random& random) {
  const auto in_word = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '.' || c == '-';
  };
  const auto at = input.begin() + static_cast<std::ptrdiff_t>(Below(input.size() + 1, random));
  const auto begin = std::find_if(at, input.end(), in_word);
  const auto end = std::find_if_not(begin, input.end(), in_word);
  input.replace(begin, end, kTexts[Below(kTexts.size(), random)]);
}

// Returns a random part of `input`, mostly a short one.
std::string_view PartOf(std::string_view input, Random& random) {
  const size_t begin = Below(input.size() + 1, random);
  const size_t longest = Below(8, random) == 0 ? input.size() : 32;
  return input.substr(begin, Below(longest + 1, random));
}

void Change(std::string& input, const std::vector<std::string>& inputs, Random& random) {
  const size_t at = Below(input.size() + 1, random);
  switch (Below(8, random)) {
    case 0:
      if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << Below(8, random)));
      break;
    case 1:
      if (at < input.size()) input[at] = static_cast<char>(random());
      break;
    case 2:
      input.insert(at, 1 + Below(4, random), static_cast<char>(random()));
      break;
    case 3:
      input.erase(at, PartOf(input, random).size());
      break;
    case 4:
      input.insert(at, std::string(PartOf(input, random)));
      break;
    case 5:
      input.insert(at, std::string(PartOf(inputs[Below(inputs.size(), random)], random)));
      break;
    case 6:
      PutNumber(input, random);
      break;
    default:
      PutText(input, random);
  }
}

}  // namespace

std::string Mutate(const std::vector<std::string>& inputs, Random& random) {
  std::string input = inputs[Below(inputs.size(), random)];
  for (size_t changes = 1 + Below(4, random); changes > 0; --changes) Change(input, inputs, random);
  return input;
}

}  // namespace lathe::fuzz
