// DataLoader: cuts a data set into batches. Their order is a function of (seed, epoch). Threads
// prepare batches ahead of use.
//
//   TensorDataset data(inputs, targets);                    // tensor_dataset.h
//   DataLoader train(data, {.batch_size = 32, .shuffle = true});
//   for (int epoch = 0; epoch < 3; ++epoch)
//     for (const auto& [inputs, targets] : train) ...       // each begin() starts the next epoch
//
// The data set is any class that derives from Dataset<Sample> or IterableDataset<Sample>
// (dataset.h). A collate function makes a batch of samples; its result is the type of batches:
//
//   DataLoader pairs(data, {.batch_size = 32}, [](std::vector<Pair> all) { return Pack(all); });
//
// It must fill all tensors of a batch. Those that may be missing are in a std::optional, or in a
// map with others. Without a function, samples are stacked into a TensorBatch (tensor_batch.h).
// Packed text has its own DataLoader<Batch> (data/datasets/data_loader.h).
#pragma once

#include <memory>
#include <utility>

#include "lathe/data/loading/dataset_source.h"
#include "lathe/data/loading/loader.h"
#include "lathe/data/loading/to_device.h"

namespace lathe {

// True if a loader moves batches B to its device: all that can be moved, unless the type says that
// they stay on the host.
template <typename B>
inline constexpr bool kLoaderMoves = MovableToDevice<B> && !requires {
  requires B::kStaysOnHost;
};

// What DataLoader<B> has for batches of any type B.
template <typename B>
class LoaderOf : public Loader {
 public:
  // Makes batches by collate(std::vector<Sample>), which returns a B. It may run on several
  // threads at once. Keeps its own reference to the data set, or a copy.
  template <AnyDataset D, CollatesTo<B, D> Collate>
  LoaderOf(D dataset, DataLoaderOptions options, Collate collate)
      : LoaderOf(MakeSource<B>(std::move(dataset), std::move(collate)), std::move(options)) {
    Check(this->options().class_weights.empty(), "data_loader",
          "class_weights are for packed text; override Dataset::Weight");
  }
  // Stacks samples.
  template <AnyDataset D>
  LoaderOf(D dataset, DataLoaderOptions options) requires CollatesTo<DefaultCollate, B, D>
      : LoaderOf(std::move(dataset), std::move(options), DefaultCollate()) {}

  // A single-pass iterator: its copies share one epoch. ++ rethrows what went wrong while the batch
  // was made. It may be destroyed at any time and may outlive the loader.
  class Iterator {
   public:
    const B& operator*() const { return *batch_; }
    const B* operator->() const { return batch_.get(); }
    // What the loader knows of the batch, such as which samples it has.
    const BatchInfo& info() const { return *info_; }
    Iterator& operator++() {
      Take();
      return *this;
    }
    bool operator!=(const Iterator& other) const { return batch_ != other.batch_; }
    bool operator==(const Iterator& other) const { return batch_ == other.batch_; }

   private:
    friend class LoaderOf;
    void Take() {
      batch_ = nullptr;
      if (pass_ == nullptr) return;
      LoaderPass::Given given = pass_->Next();
      batch_ = std::static_pointer_cast<const B>(std::move(given.batch));
      info_ = std::move(given.info);
      if constexpr (kLoaderMoves<B>) {
        if (batch_ != nullptr && !device_.is_cpu())
          batch_ = std::make_shared<const B>(ToDevice(*batch_, device_));
      }
    }
    std::shared_ptr<LoaderPass> pass_;
    std::shared_ptr<const B> batch_;
    std::shared_ptr<const BatchInfo> info_;
    Device device_ = {};
  };
  // Starts an epoch and increments epoch().
  Iterator begin() {
    Iterator iterator;
    iterator.pass_ = Begin();
    iterator.device_ = device();
    iterator.Take();
    return iterator;
  }
  Iterator end() const { return {}; }

 protected:
  LoaderOf(std::shared_ptr<const BatchSource> source, DataLoaderOptions options)
      : Loader(std::move(source), std::move(options)) {}
};

template <typename B>
class DataLoader : public LoaderOf<B> {
 public:
  // LoaderOf's constructors. Clang 16 crashes where it checks the constraints of inherited ones.
  template <AnyDataset D, CollatesTo<B, D> Collate>
  DataLoader(D dataset, DataLoaderOptions options, Collate collate)
      : LoaderOf<B>(std::move(dataset), std::move(options), std::move(collate)) {}
  template <AnyDataset D>
  DataLoader(D dataset, DataLoaderOptions options) requires CollatesTo<DefaultCollate, B, D>
      : LoaderOf<B>(std::move(dataset), std::move(options)) {}
};

struct Batch;
template <>
class DataLoader<Batch>;  // data/datasets/data_loader.h

template <AnyDataset D>
DataLoader(D, DataLoaderOptions) -> DataLoader<CollateResult<DefaultCollate, D>>;
template <AnyDataset D, typename Collate>
DataLoader(D, DataLoaderOptions, Collate) -> DataLoader<CollateResult<Collate, D>>;

}  // namespace lathe
