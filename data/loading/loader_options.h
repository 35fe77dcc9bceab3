// The options of loaders.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace lathe {

// An order of samples of one's own. samplers.h makes the usual ones.
//
//   Sampler evens{.num_samples = 2, .order = [](uint64_t, int64_t) { return Order{0, 2}; }};
struct Sampler {
  int64_t num_samples = 0;  // in each epoch
  // Returns the indices of an epoch's samples, num_samples of them. The same seed and epoch must
  // give the same order on all ranks. An index may come several times.
  std::function<std::vector<int64_t>(uint64_t seed, int64_t epoch)> order = {};
};

struct DataLoaderOptions {
  int64_t batch_size = 8;  // up to 2^31 - 1
  bool shuffle = false;
  // Shuffles a stream, as `shuffle` can't. So many samples wait in memory, and each next one is
  // drawn from them at random. The order is a function of (seed, epoch) and of this number. 0 or 1:
  // the stream's order. Only for streams.
  int64_t shuffle_buffer = 0;
  // The length-grouped order of Transformers' Trainer, shuffled whatever `shuffle` says. It
  // consists of mega-batches of up to 50 batches, each sorted from long to short. The longest
  // sample of all comes first.
  bool group_by_length = false;
  // Keeps one order in all epochs. Batches of the same size have nearly the same number of tokens,
  // so products have to be prepared for few shapes. Excludes shuffle and group_by_length.
  bool even_tokens = false;
  bool drop_last = false;
  uint64_t seed = 42;
  // How much samples of each class count in the loss: [num_labels]. Only for packed text with
  // classes. They decide on BatchShare::weight. Empty: all count alike.
  std::vector<float> class_weights = {};
  int prefetch = 2;  // batches prepared ahead on threads; 0: no thread
  // The threads that prepare batches. Their number changes neither the batches nor their order.
  // 0: no thread.
  int num_workers = 1;
  // Replaces the order that the options above give, and excludes them. Without `order` there is
  // none.
  Sampler sampler = {};
};

}  // namespace lathe
