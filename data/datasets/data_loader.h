// DataLoader<Batch>: cuts a tokenized dataset into packed batches. data/loading/data_loader.h has
// what all loaders have.
//
//   DataLoader train(dataset, {.batch_size = 32, .shuffle = true});
//   for (int epoch = 0; epoch < 3; ++epoch)
//     for (const Batch& batch : train) ...      // each begin() starts the next epoch
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lathe/data/datasets/batch.h"
#include "lathe/data/datasets/dataset.h"
#include "lathe/data/loading/data_loader.h"
#include "lathe/data/loading/sample_order.h"

namespace lathe {

// The order in which samples are visited in `epoch`. It is a function of the dataset's lengths, of
// (seed, epoch) and, with group_by_length or even_tokens, of batch_size.
std::vector<int64_t> SampleOrder(const TokenizedDataset& dataset, const DataLoaderOptions& options,
                                 int64_t epoch);

// Packs the samples `indices` of the dataset. Throws if there are none or if one has no tokens.
Batch Collate(const TokenizedDataset& dataset, const std::vector<int64_t>& indices);

// A loader of packed text. It may also have a data set and a collate function of one's own, if that
// returns a Batch.
template <>
class DataLoader<Batch> : public LoaderOf<Batch> {
 public:
  using LoaderOf<Batch>::LoaderOf;
  // Keeps its own reference to the dataset.
  DataLoader(std::shared_ptr<const TokenizedDataset> dataset, DataLoaderOptions options);
  DataLoader(TokenizedDataset dataset, DataLoaderOptions options);

  // Passes that begin from now on give Batch::encoded, the samples' rows of `rows`. `rows`: [n, H]
  // f32 on the host for the n samples of the dataset.
  void SetEncoded(Tensor rows);

  // Returns true unless the data set is one's own. Then dataset() and SetEncoded throw.
  bool has_dataset() const { return dataset_ != nullptr; }
  const TokenizedDataset& dataset() const;

 private:
  std::shared_ptr<const TokenizedDataset> dataset_;
};

DataLoader(std::shared_ptr<const TokenizedDataset>, DataLoaderOptions)->DataLoader<Batch>;
DataLoader(std::shared_ptr<TokenizedDataset>, DataLoaderOptions)->DataLoader<Batch>;
DataLoader(TokenizedDataset, DataLoaderOptions)->DataLoader<Batch>;

using TextLoader = DataLoader<Batch>;

}  // namespace lathe
