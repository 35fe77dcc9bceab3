// Ranges of the elements of a flat buffer, and their division among ranks.
#pragma once

#include <cstdint>
#include <vector>

namespace lathe {

struct ElementRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const ElementRange&) const = default;
};

// Returns the stripe of `range` that belongs to `rank` of `count` ranks. The stripes follow each
// other, and their sizes differ by at most 32 elements. Each begins at a multiple of 32 elements
// from range.begin, so that ranks share no cache line of elements of 2 bytes or more.
ElementRange StripeOfRank(ElementRange range, int rank, int count);

// Intersection returns the parts of `range` that lie in `others`, Difference those that don't, in
// ascending order. `others` must be ascending and must not overlap.
std::vector<ElementRange> Intersection(ElementRange range, const std::vector<ElementRange>& others);
std::vector<ElementRange> Difference(ElementRange range, const std::vector<ElementRange>& others);

}  // namespace lathe
