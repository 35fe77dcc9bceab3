// What a loader knows of a batch, whatever the batch's type.
#pragma once

#include <cstdint>
#include <vector>

namespace lathe {

// A rank's share of the global batch, which all ranks compute together.
struct BatchShare {
  int64_t global_size = 0, global_num_tokens = 0;  // of all shares together
  // What divides a mean loss: in this share and in all shares. It is the number of samples or, with
  // weights of samples or classes, the sum of their weights. In packed text, samples of the class
  // kIgnoreIndex have no weight.
  double weight = 0, global_weight = 0;
  // True if this share is empty. A sample of another rank's share then stands in for it, with
  // weight 0. So this rank takes part in everything that the loop does, but its sample counts
  // nowhere.
  bool stand_in = false;
};

struct BatchInfo {
  std::vector<int64_t> indices;     // [B] the place of each sample in the data set
  std::vector<int32_t> sample_ids;  // [B] the place of each sample in the global batch, ascending
  BatchShare share;
  int64_t step = -1;  // the number of the batch since training began

  int64_t num_samples() const { return static_cast<int64_t>(sample_ids.size()); }  // B
};

}  // namespace lathe
