// How several processes share out an optimizer's update (the first stage of ZeRO, Rajbhandari et
// al. 2020): each updates its own part of the arena, keeps the moments of that part only, and gets
// the others' new values afterwards.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lathe/core/element_range.h"

namespace lathe {

// Ranges are of elements of the arena, ascending and apart from each other.
struct UpdateShares {
  std::vector<ElementRange> parts;   // what is shared out; all processes update the rest
  std::vector<ElementRange> own;     // of them, this process's
  std::vector<ElementRange> others;  // and the other ones'
  int rank = 0, size = 1;
  // Collectives. data, as large as the arena: `others` = what those processes have there. What is
  // not in `changed` (ascending, apart from each other, the same in all processes) is the same
  // already.
  std::function<void(std::span<float> data, const std::vector<ElementRange>& changed)> gather;
  // Returns when all processes have called it.
  std::function<void()> wait;
  // The sum of all processes' values, the same bits on each.
  std::function<double(double)> sum;
};

// What holds at present: it changes when parameters are frozen or thawed. Null: nothing is shared.
struct PresentShares {
  std::shared_ptr<const UpdateShares> now;
};

}  // namespace lathe
