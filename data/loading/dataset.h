// Data sets that anyone can write, and those made of others.
//
//   struct Squares : Dataset<std::pair<float, float>> {
//     int64_t Size() const override { return 100; }
//     std::pair<float, float> Get(int64_t i) const override { return {i, i * i}; }
//   };
//   auto [train, eval] = RandomSplit(Squares(), {0.8, 0.2});
//   MapDataset noisy(train, [](std::pair<float, float> sample) { return Noisy(sample); });
//   DataLoader loader(ConcatDataset(noisy, Squares()), {.batch_size = 32});
//
// Classes here take other data sets by value, or as a std::shared_ptr.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/data/loading/sample_order.h"

namespace lathe {

// A data set whose samples have numbers. Several threads may call all functions at once.
template <typename Sample>
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t Size() const = 0;
  // Returns sample i, in [0, Size()). A DataLoader's error names i if this throws.
  virtual Sample Get(int64_t i) const = 0;
  // Returns how much work sample i is beside others, such as its number of tokens. By it ranks
  // share batches, and group_by_length sorts. A loader calls this for samples of all ranks, so it
  // should not read the sample.
  virtual int64_t Length(int64_t /*i*/) const { return 1; }
  // Returns how much sample i counts in a mean loss, at least 0 (BatchShare::weight). It should not
  // read the sample either.
  virtual double Weight(int64_t /*i*/) const { return 1; }
  // Returns a text by which ranks notice that they hold different data. Empty: they compare sizes
  // only.
  virtual std::string Fingerprint() const { return ""; }
};

// A data set that can only be read from its beginning to its end.
template <typename Sample>
class IterableDataset {
 public:
  virtual ~IterableDataset() = default;
  // Starts an epoch. Returns a function that returns the next sample, or nothing at the end. One
  // thread at a time calls it. With several ranks, each of them reads the whole stream and drops
  // the others' samples. So all must read the same samples, and costly work on a sample belongs
  // into the collate function.
  virtual std::function<std::optional<Sample>()> Start(int64_t epoch) const = 0;
  // Returns how much the sample counts in a mean loss, at least 0 (BatchShare::weight). All ranks
  // call this for all samples.
  virtual double Weight(const Sample& /*sample*/) const { return 1; }
};

// Returns a digest of these bytes or numbers, for Fingerprint.
std::string FingerprintOf(const void* data, size_t bytes);
inline std::string FingerprintOf(const std::vector<int64_t>& numbers) {
  return FingerprintOf(numbers.data(), numbers.size() * sizeof(int64_t));
}

// --- what a class template takes as a data set ---

namespace dataset_internal {

template <typename D>
struct Pointee {
  using Type = D;
};
template <typename D>
struct Pointee<std::shared_ptr<D>> {
  using Type = std::remove_const_t<D>;
};
template <typename Sample>
std::type_identity<Sample> OfDataset(const Dataset<Sample>*) {
  return {};
}
template <typename Sample>
std::type_identity<Sample> OfStream(const IterableDataset<Sample>*) {
  return {};
}

}  // namespace dataset_internal

template <typename D>
concept IndexedDataset = requires(const typename dataset_internal::Pointee<D>::Type* d) {
  dataset_internal::OfDataset(d);
};
template <typename D>
concept StreamedDataset = requires(const typename dataset_internal::Pointee<D>::Type* d) {
  dataset_internal::OfStream(d);
};
template <typename D>
concept AnyDataset = IndexedDataset<D> || StreamedDataset<D>;

namespace dataset_internal {

template <typename D>
auto SampleType(const typename Pointee<D>::Type* d) {
  if constexpr (IndexedDataset<D>) {
    return OfDataset(d);
  } else {
    return OfStream(d);
  }
}

}  // namespace dataset_internal

template <AnyDataset D>
using SampleOf = typename decltype(dataset_internal::SampleType<D>(nullptr))::type;

// Returns a reference to the data set. Throws if it is null.
template <AnyDataset D>
auto ShareDataset(D dataset) {
  using Base =
      std::conditional_t<IndexedDataset<D>, Dataset<SampleOf<D>>, IterableDataset<SampleOf<D>>>;
  if constexpr (std::is_same_v<D, typename dataset_internal::Pointee<D>::Type>) {
    return std::shared_ptr<const Base>(std::make_shared<const D>(std::move(dataset)));
  } else {
    Check(dataset != nullptr, "dataset", "the data set is null");
    return std::shared_ptr<const Base>(std::move(dataset));
  }
}

// --- data sets of others ---

// The samples `indices` of another data set, in that order.
template <typename Sample>
class Subset : public Dataset<Sample> {
 public:
  // Throws if a sample does not exist.
  template <IndexedDataset D>
  Subset(D dataset, std::vector<int64_t> indices)
      : dataset_(ShareDataset(std::move(dataset))), indices_(std::move(indices)) {
    for (const int64_t i : indices_) {
      Check(i >= 0 && i < dataset_->Size(), "subset", "sample ", i,
            " does not exist; the data set has ", dataset_->Size(), " samples");
    }
  }
  int64_t Size() const override { return std::ssize(indices_); }
  Sample Get(int64_t i) const override { return dataset_->Get(At(i)); }
  int64_t Length(int64_t i) const override { return dataset_->Length(At(i)); }
  double Weight(int64_t i) const override { return dataset_->Weight(At(i)); }
  std::string Fingerprint() const override {
    return dataset_->Fingerprint() + "/" + FingerprintOf(indices_);
  }
  const std::vector<int64_t>& indices() const { return indices_; }

 private:
  int64_t At(int64_t i) const {
    Check(i >= 0 && i < Size(), "subset", "sample ", i, " does not exist; there are ", Size());
    return indices_[static_cast<size_t>(i)];
  }
  std::shared_ptr<const Dataset<Sample>> dataset_;
  std::vector<int64_t> indices_;
};
template <IndexedDataset D>
Subset(D, std::vector<int64_t>) -> Subset<SampleOf<D>>;

// The samples of two or more data sets, one set after another.
template <typename Sample>
class ConcatDataset : public Dataset<Sample> {
 public:
  template <IndexedDataset... D>
  requires(sizeof...(D) > 1) explicit ConcatDataset(D... datasets)
      : parts_{ShareDataset(std::move(datasets))...} {
    for (const auto& part : parts_) ends_.push_back(Size() + part->Size());
  }
  int64_t Size() const override { return ends_.empty() ? 0 : ends_.back(); }
  Sample Get(int64_t i) const override {
    const auto [part, place] = Find(i);
    return parts_[part]->Get(place);
  }
  int64_t Length(int64_t i) const override {
    const auto [part, place] = Find(i);
    return parts_[part]->Length(place);
  }
  double Weight(int64_t i) const override {
    const auto [part, place] = Find(i);
    return parts_[part]->Weight(place);
  }
  std::string Fingerprint() const override {
    std::string all;
    for (const auto& part : parts_)
      all += std::to_string(part->Size()) + " " + part->Fingerprint() + "+";
    return all;
  }

 private:
  std::pair<size_t, int64_t> Find(int64_t i) const {
    Check(i >= 0 && i < Size(), "concat_dataset", "sample ", i, " does not exist; there are ",
          Size());
    const auto part =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), i) - ends_.begin());
    return {part, part == 0 ? i : i - ends_[part - 1]};
  }
  std::vector<std::shared_ptr<const Dataset<Sample>>> parts_;
  std::vector<int64_t> ends_;  // where each part ends
};
template <IndexedDataset First, IndexedDataset... D>
ConcatDataset(First, D...) -> ConcatDataset<SampleOf<First>>;

// The samples function(sample) of another data set. The function may run on several threads at
// once.
template <typename From, typename To>
class MapDataset : public Dataset<To> {
 public:
  template <IndexedDataset D>
  MapDataset(D dataset, std::function<To(From)> function)
      : dataset_(ShareDataset(std::move(dataset))), function_(std::move(function)) {}
  int64_t Size() const override { return dataset_->Size(); }
  To Get(int64_t i) const override { return function_(dataset_->Get(i)); }
  int64_t Length(int64_t i) const override { return dataset_->Length(i); }
  double Weight(int64_t i) const override { return dataset_->Weight(i); }
  std::string Fingerprint() const override { return dataset_->Fingerprint(); }

 private:
  std::shared_ptr<const Dataset<From>> dataset_;
  std::function<To(From)> function_;
};
template <IndexedDataset D, typename Function>
MapDataset(D, Function) -> MapDataset<SampleOf<D>, std::invoke_result_t<Function, SampleOf<D>>>;

// Returns the sizes of parts that are shares of n samples, as PyTorch's random_split computes them:
// rounded down, and the first parts get what is left. Throws unless the shares are at least 0 and
// have the sum 1.
std::vector<int64_t> SizesOfParts(int64_t n, const std::vector<double>& shares);

// Throws unless the sizes are at least 0 and have the sum n.
void CheckParts(int64_t n, const std::vector<int64_t>& sizes);

// Splits a data set into parts of these sizes, or of these shares of it, at random:
//   auto [train, eval] = RandomSplit(data, {800, 200});
//   auto [train, eval] = RandomSplit(data, {0.8, 0.2});
// The parts are a function of the seed. Throws unless the sizes have the data set's size as their
// sum, or the shares the sum 1.
template <IndexedDataset D, typename Number, size_t kParts>
requires std::is_arithmetic_v<Number> std::array<Subset<SampleOf<D>>, kParts> RandomSplit(
    D dataset, const Number (&parts)[kParts], uint64_t seed = 42) {
  const auto shared = ShareDataset(std::move(dataset));
  std::vector<int64_t> sizes(std::begin(parts), std::end(parts));
  if constexpr (std::is_floating_point_v<Number>)
    sizes = SizesOfParts(shared->Size(), {std::begin(parts), std::end(parts)});
  CheckParts(shared->Size(), sizes);
  const std::vector<int64_t> order = ShuffledOrder(shared->Size(), seed, 0);
  return [&]<size_t... i>(std::index_sequence<i...>) {
    auto at = order.begin();
    const auto take = [&](int64_t size) {
      const auto begin = std::exchange(at, at + size);
      return std::vector<int64_t>(begin, at);
    };
    return std::array<Subset<SampleOf<D>>, kParts>{Subset<SampleOf<D>>(shared, take(sizes[i]))...};
  }
  (std::make_index_sequence<kParts>());
}

}  // namespace lathe
