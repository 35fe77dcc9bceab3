// Ranges of the elements of a flat buffer, and how several processes share them out.
#pragma once

#include <cstdint>
#include <vector>

namespace lathe {

struct ElementRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const ElementRange&) const = default;
};

// The part of `range` that is process `rank`'s of `count`. Parts follow each other and are of the
// same size up to 32 elements, in multiples of which from range.begin they begin: whole cache lines
// of every dtype.
ElementRange Stripe(ElementRange range, int rank, int count);

// What of `range` lies in `others`, which are ascending and apart from each other, and what does
// not; ascending.
std::vector<ElementRange> Within(ElementRange range, const std::vector<ElementRange>& others);
std::vector<ElementRange> Without(ElementRange range, const std::vector<ElementRange>& others);

}  // namespace lathe
