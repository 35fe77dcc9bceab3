// DataLoader: batches of a tokenised dataset, in an order that is a function of (seed, epoch),
// collated into packed batches on a thread ahead of use.
//
//   DataLoader train(dataset, {.batch_size = 32, .shuffle = true});
//   for (int epoch = 0; epoch < 3; ++epoch)
//     for (const Batch& batch : train) ...      // each begin() starts the next epoch
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lathe/data/datasets/batch.h"
#include "lathe/data/datasets/dataset.h"

namespace lathe {

struct DataLoaderOptions {
  int64_t batch_size = 8;
  bool shuffle = false;
  // Trainer's length-grouped order, shuffled in any case: mega-batches of up to 50 batches, each
  // from long to short, the longest sample of all first.
  bool group_by_length = false;
  // The same order each time, in which all batches have nearly the same number of tokens, as far as
  // they have as many samples: few shapes, for which products have to be prepared. Not with the two
  // above.
  bool even_tokens = false;
  bool drop_last = false;
  uint64_t seed = 42;
  int prefetch = 2;  // batches prepared ahead on a thread; 0: none, no thread
};

// The order in which samples are visited in `epoch`: a function of the dataset's lengths, (seed,
// epoch) and, with group_by_length or even_tokens, batch_size.
std::vector<int64_t> SampleOrder(const TokenizedDataset& dataset, const DataLoaderOptions& options,
                                 int64_t epoch);

// Packs the samples `indices` of the dataset. Throws if there are none, or one has no tokens.
Batch Collate(const TokenizedDataset& dataset, const std::vector<int64_t>& indices);

// Which of `parts` shares each of the samples with these lengths belongs to: shares of nearly the
// same number of tokens. With fewer samples than parts some shares are empty.
std::vector<int> SplitByTokens(const std::vector<int64_t>& lengths, int parts);

// The passes over a process's loaders that are under way, the innermost last: how an Accelerator
// knows which batch a loss belongs to.
struct LoaderPasses {
  struct Entry {
    std::shared_ptr<const Batch> batch;
    int64_t batches_left = 0;        // after this one
    int64_t begun = 0, went_on = 0;  // when it began and gave its batch, by `clock`
  };
  int64_t clock = 0;
  std::vector<std::shared_ptr<Entry>> entries;
  // Called when a pass has begun or ended, but for one that an exception ends. Must not throw.
  std::function<void()> changed = {};
  // Called before a pass gives each of its batches; what it throws, begin() or ++ throws.
  std::function<void()> before_batch = {};
};

class DataLoader {
 public:
  // Keeps its own reference to the dataset.
  DataLoader(std::shared_ptr<const TokenizedDataset> dataset, DataLoaderOptions options);
  DataLoader(TokenizedDataset dataset, DataLoaderOptions options);
  ~DataLoader();

  // Makes this process's passes yield its shares of the batches: those of the process `rank` of
  // `world_size`. With `split_batches` the processes share batches of batch_size samples, otherwise
  // of world_size * batch_size. Shares have nearly the same number of tokens; sample_ids tell
  // places in the whole batch, in ascending order. Passes that begin from now on are entered in
  // `passes`, which may be null.
  void Shard(int rank, int world_size, bool split_batches, std::shared_ptr<LoaderPasses> passes);

  int64_t size() const;  // batches in an epoch, the same on all processes
  int64_t whole_batch_size() const { return whole_batch_size_; }  // samples, of all processes
  int64_t num_samples() const { return dataset_->size(); }
  const TokenizedDataset& dataset() const { return *dataset_; }
  const DataLoaderOptions& options() const { return options_; }
  int64_t epoch() const { return epoch_; }  // the one that the next begin() starts
  void SetEpoch(int64_t epoch) { epoch_ = epoch; }
  // The next pass begins with batch n, without making those before it. Throws if there are fewer.
  void SkipFirst(int64_t n);

  // Single pass: copies share it. ++ rethrows what went wrong while the batch was made. May be
  // destroyed, or outlive the loader, at any time.
  class Iterator {
   public:
    const Batch& operator*() const { return *batch_; }
    const Batch* operator->() const { return batch_.get(); }
    Iterator& operator++();
    bool operator!=(const Iterator& other) const { return batch_ != other.batch_; }
    bool operator==(const Iterator& other) const { return batch_ == other.batch_; }

   private:
    friend class DataLoader;
    struct Pass;
    void Take();
    std::shared_ptr<Pass> pass_;
    std::shared_ptr<const Batch> batch_;
  };
  // Starts an epoch and moves epoch() on. Batch::step is epoch * size() + place in the epoch.
  Iterator begin();
  Iterator end() const { return {}; }

 private:
  std::shared_ptr<const TokenizedDataset> dataset_;
  DataLoaderOptions options_;
  int64_t epoch_ = 0, skip_ = 0;
  int rank_ = 0, world_size_ = 1;
  int64_t whole_batch_size_;
  std::shared_ptr<LoaderPasses> passes_;
};

}  // namespace lathe
