// The passes over a rank's loaders that are under way.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lathe/data/loading/batch_info.h"

namespace lathe {

class Loader;

// The passes that are under way, the innermost last. A pass over a loader is one epoch. From the
// passes an Accelerator knows which batch a loss belongs to.
struct LoaderPasses {
  // The batches that follow, if a stream has more of them.
  static constexpr int64_t kUnknown = INT64_MAX / 2;
  struct Entry {
    std::shared_ptr<const BatchInfo> batch;
    int64_t batches_left = 0;   // that follow this one
    int64_t began_at = 0;       // when the pass began, by `clock`
    int64_t last_batch_at = 0;  // when the pass last gave a batch, by `clock`
  };
  int64_t clock = 0;
  std::vector<std::shared_ptr<Entry>> entries;
  std::vector<Loader*> loaders;  // that live, in the order in which they came here
  // Called when a pass has begun or ended, unless an exception ended it. Must not throw.
  std::function<void()> changed = {};
  // Called before a pass gives a batch. An exception from it leaves begin() or ++.
  std::function<void()> before_batch = {};
};

}  // namespace lathe
