// DataLoader: batches of a tokenised dataset, in an order that is a function of (seed, epoch), collated into
// packed batches on a thread ahead of use.
//
//   DataLoader train(dataset, {.batch_size = 32, .shuffle = true});
//   for (int epoch = 0; epoch < 3; ++epoch)
//     for (const Batch& batch : train) ...      // each begin() starts the next epoch
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lathe/data/batch.h"
#include "lathe/data/dataset.h"

namespace lathe {

struct DataLoaderOptions {
  int64_t batch_size = 8;
  bool shuffle = false;
  bool group_by_length = false;  // Trainer's length-grouped order: mega-batches of up to 50 batches
  bool drop_last = false;
  uint64_t seed = 42;
  int prefetch = 2;              // batches prepared ahead on a thread; 0: none, no thread
};

// The order in which samples are visited in `epoch`.
std::vector<int64_t> SampleOrder(const TokenizedDataset& dataset, const DataLoaderOptions& options,
                                 int64_t epoch);

// Packs the samples `indices` of the dataset.
Batch Collate(const TokenizedDataset& dataset, const std::vector<int64_t>& indices);

class DataLoader {
 public:
  // Keeps its own reference to the dataset.
  DataLoader(std::shared_ptr<const TokenizedDataset> dataset, DataLoaderOptions options);
  DataLoader(TokenizedDataset dataset, DataLoaderOptions options);
  ~DataLoader();

  int64_t size() const;  // batches in an epoch
  int64_t num_samples() const { return dataset_->size(); }
  const TokenizedDataset& dataset() const { return *dataset_; }
  const DataLoaderOptions& options() const { return options_; }
  int64_t epoch() const { return epoch_; }  // the one that the next begin() starts
  void SetEpoch(int64_t epoch) { epoch_ = epoch; }

  class Iterator {  // single pass
   public:
    const Batch& operator*() const { return *batch_; }
    const Batch* operator->() const { return batch_.get(); }
    Iterator& operator++();
    bool operator!=(const Iterator& other) const { return batch_ != other.batch_; }
    bool operator==(const Iterator& other) const { return batch_ == other.batch_; }

   private:
    friend class DataLoader;
    struct Pass;
    std::shared_ptr<Pass> pass_;
    std::shared_ptr<const Batch> batch_;
  };
  // Starts an epoch and moves epoch() on. Batch::step is epoch * size() + place in the epoch.
  Iterator begin();
  Iterator end() const { return {}; }

 private:
  std::shared_ptr<const TokenizedDataset> dataset_;
  DataLoaderOptions options_;
  int64_t epoch_ = 0;
};

}  // namespace lathe
