// DataLoader: cuts a tokenized dataset into packed batches. Their order is a function of (seed,
// epoch). A thread prepares batches ahead of use.
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
  // The length-grouped order of Transformers' Trainer, shuffled whatever `shuffle` says. It
  // consists of mega-batches of up to 50 batches, each sorted from long to short. The longest
  // sample of all comes first.
  bool group_by_length = false;
  // Keeps one order in all epochs. Batches of the same size have nearly the same number of tokens,
  // so products have to be prepared for few shapes. Excludes shuffle and group_by_length.
  bool even_tokens = false;
  bool drop_last = false;
  uint64_t seed = 42;
  // How much samples of each class count in the loss: [num_labels], for classes only. They decide
  // on Batch::Share::weight. Empty: all count alike.
  std::vector<float> class_weights = {};
  int prefetch = 2;  // batches prepared ahead on a thread; 0: no thread
};

struct StateDict;

// The order in which samples are visited in `epoch`. It is a function of the dataset's lengths, of
// (seed, epoch) and, with group_by_length or even_tokens, of batch_size.
std::vector<int64_t> SampleOrder(const TokenizedDataset& dataset, const DataLoaderOptions& options,
                                 int64_t epoch);

// Packs the samples `indices` of the dataset. Throws if there are none or if one has no tokens.
Batch Collate(const TokenizedDataset& dataset, const std::vector<int64_t>& indices);

// Splits samples of these lengths into `parts` shares with nearly the same number of tokens.
// Returns each sample's share. If there are fewer samples than parts, some shares are empty.
std::vector<int> SplitByTokens(const std::vector<int64_t>& lengths, int parts);

class DataLoader;

// The passes over a rank's loaders that are under way, the innermost last. A pass over a loader is
// one epoch. From the passes an Accelerator knows which batch a loss belongs to.
struct LoaderPasses {
  struct Entry {
    std::shared_ptr<const Batch> batch;
    int64_t batches_left = 0;   // that follow this one
    int64_t began_at = 0;       // when the pass began, by `clock`
    int64_t last_batch_at = 0;  // when the pass last gave a batch, by `clock`
  };
  int64_t clock = 0;
  std::vector<std::shared_ptr<Entry>> entries;
  std::vector<DataLoader*> loaders;  // that live, in the order in which they came here
  // Called when a pass has begun or ended, unless an exception ended it. Must not throw.
  std::function<void()> changed = {};
  // Called before a pass gives a batch. An exception from it leaves begin() or ++.
  std::function<void()> before_batch = {};
};

class DataLoader {
 public:
  // Keeps its own reference to the dataset.
  DataLoader(std::shared_ptr<const TokenizedDataset> dataset, DataLoaderOptions options);
  DataLoader(TokenizedDataset dataset, DataLoaderOptions options);
  ~DataLoader();

  // Makes this loader's passes yield only the shares of rank `rank` of `world_size` ranks. With
  // `split_batches` the ranks share batches of batch_size samples, otherwise of world_size *
  // batch_size. Shares have nearly the same number of tokens. A share's sample_ids are its samples'
  // places in the global batch, in ascending order. Passes that begin from now on are entered in
  // `passes`, which may be null.
  void Shard(int rank, int world_size, bool split_batches, std::shared_ptr<LoaderPasses> passes);

  // Passes that begin from now on give Batch::encoded, the samples' rows of `rows`. `rows`: [n, H]
  // f32 on the host for the n samples of the dataset.
  void SetEncoded(Tensor rows);

  int64_t size() const;  // batches in an epoch, the same on all ranks
  int64_t global_batch_size() const { return global_batch_size_; }  // that of all ranks together
  int64_t num_samples() const { return dataset_->size(); }
  const TokenizedDataset& dataset() const { return *dataset_; }
  const DataLoaderOptions& options() const { return options_; }
  int64_t epoch() const { return epoch_; }  // the epoch that the next begin() starts
  void SetEpoch(int64_t epoch) { epoch_ = epoch; }
  // Makes the next pass begin with batch n, without making those before it. Throws if there are
  // fewer than n.
  void SkipFirstBatches(int64_t n);
  // Returns the place of the next batch (core/checkpoint/state_dict.h). In a pass, that is the one
  // after the batch that the pass has given; batches that are prepared ahead don't count.
  lathe::StateDict StateDict() const;
  // The next pass begins at that place, without making the batches before it. Throws if the place
  // lies between two of this loader's batches, or behind the last one.
  void LoadStateDict(const lathe::StateDict& state);

  // A single-pass iterator: its copies share one epoch. ++ rethrows what went wrong while the batch
  // was made. It may be destroyed at any time and may outlive the loader.
  class Iterator {
   public:
    const Batch& operator*() const { return *batch_; }
    const Batch* operator->() const { return batch_.get(); }
    Iterator& operator++();
    bool operator!=(const Iterator& other) const { return batch_ != other.batch_; }
    bool operator==(const Iterator& other) const { return batch_ == other.batch_; }

   private:
    friend class DataLoader;
    struct Epoch;
    void Take();
    std::shared_ptr<Epoch> epoch_;
    std::shared_ptr<const Batch> batch_;
  };
  // Starts an epoch and increments epoch(). Batch::step is epoch * size() + the batch's place in
  // the epoch.
  Iterator begin();
  Iterator end() const { return {}; }

 private:
  std::shared_ptr<const TokenizedDataset> dataset_;
  DataLoaderOptions options_;
  int64_t epoch_ = 0, skip_ = 0;
  int rank_ = 0, world_size_ = 1;
  int64_t global_batch_size_;
  Tensor encoded_;  // undefined if there is none
  std::shared_ptr<LoaderPasses> passes_;
  std::weak_ptr<const Iterator::Epoch> pass_;  // the pass that began last
};

}  // namespace lathe
