// Loader: what all loaders have in common, whatever their batches are (data_loader.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/base/dtype.h"
#include "lathe/data/loading/batch_source.h"
#include "lathe/data/loading/loader_options.h"
#include "lathe/data/loading/loader_pass.h"
#include "lathe/data/loading/loader_passes.h"

namespace lathe {

struct StateDict;

class Loader {
 public:
  // Makes this loader's passes yield only the shares of rank `rank` of `world_size` ranks. With
  // `split_batches` the ranks share batches of batch_size samples, otherwise of world_size *
  // batch_size. Shares have nearly the same number of tokens or, without lengths, of samples. A
  // share's sample_ids are its samples' places in the global batch, in ascending order. Passes that
  // begin from now on are entered in `passes`, which may be null.
  void Shard(int rank, int world_size, bool split_batches, std::shared_ptr<LoaderPasses> passes);
  // Makes passes give batches on this device, as ToDevice brings them there (to_device.h). Packed
  // text stays on the host, and so do batches that ToDevice does not take.
  void SetDevice(Device device) { device_ = device; }
  Device device() const { return device_; }

  // Returns true unless the data set is a stream, whose length only reading tells.
  bool has_size() const { return source_->size() != BatchSource::kStream; }
  // Returns the number of batches in an epoch, the same on all ranks. Throws for a stream.
  int64_t size() const;
  int64_t num_samples() const;  // in the data set. Throws for a stream
  int64_t global_batch_size() const { return global_batch_size_; }  // that of all ranks together
  const DataLoaderOptions& options() const { return options_; }
  int64_t epoch() const { return epoch_; }  // the epoch that the next pass starts
  void SetEpoch(int64_t epoch) {
    epoch_ = epoch;
    if (rest_ != nullptr && rest_->epoch != epoch) rest_ = nullptr;
  }
  // Makes the next pass begin with batch n, without making those before it. A stream's samples
  // before it are read all the same. Throws if there are fewer than n batches.
  void SkipFirstBatches(int64_t n);
  // Makes the next pass of `rest`, a copy of this loader, begin with batch n of this loader's next
  // epoch. This loader goes on with the epoch after that. Until the pass of `rest` is over, its
  // place is that of both. Throws as SkipFirstBatches does.
  void LeaveRestTo(Loader& rest, int64_t n);
  // Returns the place of the next batch (core/checkpoint/state_dict.h). In a pass, that is the one
  // after the batch that the pass has given; batches that are prepared ahead don't count.
  lathe::StateDict StateDict() const;
  // The next pass begins at that place, without making the batches before it. Throws if the place
  // lies between two of this loader's batches, or behind the last one.
  void LoadStateDict(const lathe::StateDict& state);
  // Returns facts about the data set by which ranks notice that they hold different ones.
  std::vector<std::pair<std::string, std::string>> Facts() const { return source_->Facts(); }

 protected:
  // Throws for options that are out of range or exclude each other.
  Loader(std::shared_ptr<const BatchSource> source, DataLoaderOptions options);
  Loader(const Loader&) = default;
  Loader& operator=(const Loader&) = default;
  ~Loader();

  // Starts an epoch and increments epoch(). BatchInfo::step is epoch * size() + the batch's place
  // in the epoch; for a stream it is epoch * 2^20 + the place.
  std::shared_ptr<LoaderPass> Begin();
  const BatchSource& source() const { return *source_; }
  void SetSource(std::shared_ptr<const BatchSource> source) { source_ = std::move(source); }

 private:
  // The rest of an epoch, which a copy of a loader gives in its place.
  struct Rest {
    int64_t epoch, batches;  // where it begins
    bool has_begun = false;
    std::weak_ptr<const LoaderPass> pass = {};
  };

  int64_t EpochSamples() const;  // of a data set that is no stream

  std::shared_ptr<const BatchSource> source_;
  DataLoaderOptions options_;
  Device device_ = {};
  int64_t epoch_ = 0, skip_ = 0;
  int rank_ = 0, world_size_ = 1;
  int64_t global_batch_size_;
  std::shared_ptr<LoaderPasses> passes_;
  std::weak_ptr<const LoaderPass> pass_;  // the pass that began last
  std::shared_ptr<const Rest> rest_;      // what a copy gives before this loader's next pass
  std::shared_ptr<Rest> given_rest_;      // what this loader's next pass is
};

}  // namespace lathe
