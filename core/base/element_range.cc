#include "lathe/core/base/element_range.h"

#include <algorithm>

#include "lathe/core/base/round_up.h"

namespace lathe {

ElementRange StripeOfRank(ElementRange range, int rank, int count) {
  constexpr int64_t kElements = 32;
  const int64_t lines = DivideUp(range.size(), kElements);
  const auto boundary = [&](int64_t i) {
    return std::min(range.end, range.begin + lines * i / count * kElements);
  };
  return {boundary(rank), boundary(rank + 1)};
}

std::vector<ElementRange> Intersection(ElementRange range,
                                       const std::vector<ElementRange>& others) {
  std::vector<ElementRange> result;
  auto other = std::partition_point(others.begin(), others.end(),
                                    [&](const ElementRange& o) { return o.end <= range.begin; });
  for (; other != others.end() && other->begin < range.end; ++other) {
    const int64_t begin = std::max(range.begin, other->begin);
    const int64_t end = std::min(range.end, other->end);
    if (begin < end) result.push_back({begin, end});
  }
  return result;
}

std::vector<ElementRange> Difference(ElementRange range, const std::vector<ElementRange>& others) {
  std::vector<ElementRange> result;
  for (const ElementRange& part : Intersection(range, others)) {
    if (range.begin < part.begin) result.push_back({range.begin, part.begin});
    range.begin = part.end;
  }
  if (range.begin < range.end) result.push_back(range);
  return result;
}

}  // namespace lathe
