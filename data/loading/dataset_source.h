// Makes the BatchSource of a data set and a collate function.
#pragma once

#include <algorithm>
#include <concepts>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/philox.h"
#include "lathe/data/loading/batch_source.h"
#include "lathe/data/loading/dataset.h"
#include "lathe/data/loading/sample_order.h"
#include "lathe/data/loading/tensor_batch.h"

namespace lathe {

// Stacks samples into a TensorBatch.
struct DefaultCollate {
  template <Stackable Sample>
  auto operator()(std::vector<Sample> samples) const {
    return StackSamples(std::move(samples));
  }
};

template <typename Collate, AnyDataset D>
using CollateResult =
    std::remove_cvref_t<std::invoke_result_t<const Collate&, std::vector<SampleOf<D>>>>;
// A function that makes a B of the samples of a D.
template <typename Collate, typename B, typename D>
concept CollatesTo = AnyDataset<D> && requires {
  requires std::same_as<CollateResult<Collate, D>, B>;
};

// Throws the exception that is being handled again, as an Error whose message begins with `what`.
[[noreturn]] void RethrowAbout(const std::string& what);
// Throws it as an Error whose message ends with the numbers of the batch's samples.
[[noreturn]] void RethrowAboutBatch(const BatchInfo& info);

namespace dataset_source_internal {

// Throws unless sample i, whose name ends in `of`, may have this weight.
inline void CheckWeight(double weight, int64_t i, const char* of = "") {
  Check(weight >= 0 && weight <= 1e12, "data_loader", "the weight of sample ", i, of,
        " must be from 0 to 1e12 but is ", weight);
}

// Returns true if a tensor is undefined, among those that a batch of standard containers holds.
// Optional ones may be missing, and some of a map's.
template <typename T>
bool HasUndefinedTensor(const T& value) {
  if constexpr (std::same_as<T, Tensor>) {
    return !value.defined();
  } else if constexpr (requires { value.tensors(); }) {
    return HasUndefinedTensor(value.tensors());
  } else if constexpr (tensor_batch_internal::IsTuple<T>::value) {
    return std::apply([](const auto&... parts) { return (HasUndefinedTensor(parts) || ...); },
                      value);
  } else if constexpr (requires { typename T::mapped_type; }) {
    return !value.empty() && std::ranges::all_of(value, [](const auto& entry) {
      return HasUndefinedTensor(entry.second);
    });
  } else if constexpr (requires {
                         typename T::value_type;
                         value.begin() != value.end();
                       }) {
    using Part = typename T::value_type;
    if constexpr (!std::is_arithmetic_v<Part> && !std::same_as<Part, T>) {
      for (const Part& part : value) {
        if (HasUndefinedTensor(part)) return true;
      }
    }
    return false;
  } else {
    return false;
  }
}

// Returns true if a collate function gave back no batch.
template <typename B>
bool IsEmptyBatch(const B& batch) {
  if constexpr (requires { batch.tensors(); }) {
    return std::any_of(batch.tensors().begin(), batch.tensors().end(),
                       [](const Tensor& tensor) { return !tensor.defined(); });
  } else if constexpr (std::same_as<B, Tensor>) {
    return !batch.defined();
  } else if constexpr (requires { batch.input_ids.defined(); }) {
    return !batch.input_ids.defined();
  } else if constexpr (requires {
                         { batch.empty() } -> std::convertible_to<bool>;
                       }) {
    return batch.empty();
  } else if constexpr (requires { static_cast<bool>(batch); } && !std::is_arithmetic_v<B>) {
    return !static_cast<bool>(batch);
  } else {
    return false;
  }
}

template <typename B, typename Sample, typename Collate>
std::shared_ptr<const void> MakeBatch(const Collate& collate, std::vector<Sample> samples,
                                      const BatchInfo& info) {
  try {
    auto batch = std::make_shared<B>(collate(std::move(samples)));
    Check(!IsEmptyBatch(*batch), "collate", "the collate function returned nothing");
    Check(!HasUndefinedTensor(*batch), "collate",
          "the collate function returned an undefined tensor");
    if constexpr (requires { SetBatchInfo(*batch, info); }) {
      SetBatchInfo(*batch, info);
    } else if constexpr (std::derived_from<B, BatchInfo>) {
      static_cast<BatchInfo&>(*batch) = info;
    }
    return batch;
  } catch (...) {
    RethrowAboutBatch(info);
  }
}

template <typename B, typename Sample, typename Collate>
class DatasetSource : public BatchSource {
 public:
  DatasetSource(std::shared_ptr<const Dataset<Sample>> dataset, Collate collate)
      : dataset_(std::move(dataset)), collate_(std::move(collate)), size_(dataset_->Size()) {
    Check(size_ >= 0, "data_loader", "the data set's Size is ", size_);
  }

  int64_t size() const override { return size_; }
  int64_t Length(int64_t i) const override {
    const auto length = Try(i, "Length", [&] { return dataset_->Length(i); });
    Check(length >= 0, "data_loader", "the length of sample ", i, " is ", length);
    return length;
  }
  double Weight(std::span<const int64_t> indices) const override {
    double sum = 0;
    for (const int64_t i : indices) {
      const double weight = Try(i, "Weight", [&] { return dataset_->Weight(i); });
      CheckWeight(weight, i);
      sum += weight;
    }
    return sum;
  }
  std::shared_ptr<const void> Make(const BatchInfo& info, const StreamSamples&) const override {
    std::vector<Sample> samples;
    samples.reserve(info.indices.size());
    for (const int64_t i : info.indices)
      samples.push_back(Try(i, "", [&] { return dataset_->Get(i); }));
    return MakeBatch<B>(collate_, std::move(samples), info);
  }
  std::vector<std::pair<std::string, std::string>> Facts() const override {
    return {{"dataset of size", std::to_string(size_)},
            {"dataset with fingerprint", dataset_->Fingerprint()}};
  }

 private:
  template <typename Body>
  static auto Try(int64_t i, const std::string& what, Body body) -> decltype(body()) {
    try {
      return body();
    } catch (...) {
      RethrowAbout("[data_loader] " + (what.empty() ? what : what + " of ") + "sample " +
                   std::to_string(i));
    }
  }

  std::shared_ptr<const Dataset<Sample>> dataset_;
  Collate collate_;
  int64_t size_;
};

// Reads the samples of a stream, in its order or shuffled.
template <typename Sample>
class SampleReader : public StreamReader {
 public:
  SampleReader(std::shared_ptr<const IterableDataset<Sample>> dataset, int64_t epoch,
               const StreamShuffle& shuffle)
      : dataset_(std::move(dataset)),
        epoch_(epoch),
        shuffle_(shuffle),
        next_(Start(*dataset_, epoch)) {
    Check(next_ != nullptr, "data_loader", "the stream's Start returned no function");
  }
  StreamSamples Read(int64_t n) override {
    StreamSamples read;
    auto samples = std::make_shared<std::vector<Sample>>();
    while (read.count() < n) {
      std::optional<Numbered> next = shuffle_.buffer_size > 1 ? Draw() : Pull();
      if (!next) break;
      read.numbers.push_back(next->number);
      read.weights.push_back(next->weight);
      samples->push_back(std::move(next->sample));
    }
    read.samples = std::move(samples);
    return read;
  }

 private:
  struct Numbered {
    Sample sample;
    int64_t number;
    double weight;
  };

  static std::function<std::optional<Sample>()> Start(const IterableDataset<Sample>& dataset,
                                                      int64_t epoch) {
    try {
      return dataset.Start(epoch);
    } catch (...) {
      RethrowAbout("[data_loader] the stream's Start of epoch " + std::to_string(epoch));
    }
  }

  // Calls body(). An exception names the sample that is to come.
  template <typename Body>
  auto Try(const std::string& what, const Body& body) const -> decltype(body()) {
    try {
      return body();
    } catch (...) {
      RethrowAbout("[data_loader] " + what + "sample " + std::to_string(count_) + " of the stream");
    }
  }

  // Returns the stream's next sample.
  std::optional<Numbered> Pull() {
    if (!next_) return std::nullopt;
    std::optional<Sample> sample = Try("", next_);
    if (!sample) {
      next_ = nullptr;
      return std::nullopt;
    }
    const double weight = Try("Weight of ", [&] { return dataset_->Weight(*sample); });
    CheckWeight(weight, count_, " of the stream");
    return Numbered{*std::move(sample), count_++, weight};
  }

  // Returns a sample of the buffer, which is full as long as the stream goes on. The draws depend
  // on (seed, epoch) and on how many there were.
  std::optional<Numbered> Draw() {
    constexpr uint32_t kSite = static_cast<uint32_t>(HashName("data_loader/shuffle_buffer"));
    while (std::ssize(buffer_) < shuffle_.buffer_size) {
      std::optional<Numbered> next = Pull();
      if (!next) break;
      buffer_.push_back(*std::move(next));
    }
    if (buffer_.empty()) return std::nullopt;
    const int64_t i = UniformBelow(std::ssize(buffer_), num_draws_++, shuffle_.seed, epoch_, kSite);
    std::swap(buffer_[static_cast<size_t>(i)], buffer_.back());
    std::optional<Numbered> drawn = std::move(buffer_.back());
    buffer_.pop_back();
    return drawn;
  }

  std::shared_ptr<const IterableDataset<Sample>> dataset_;
  int64_t epoch_;
  StreamShuffle shuffle_;
  std::function<std::optional<Sample>()> next_;  // null at the end
  int64_t count_ = 0;                            // samples that the stream has given
  std::vector<Numbered> buffer_;
  uint64_t num_draws_ = 0;
};

template <typename B, typename Sample, typename Collate>
class StreamSource : public BatchSource {
 public:
  StreamSource(std::shared_ptr<const IterableDataset<Sample>> dataset, Collate collate)
      : dataset_(std::move(dataset)), collate_(std::move(collate)) {}

  int64_t size() const override { return kStream; }
  std::unique_ptr<StreamReader> Open(int64_t epoch, const StreamShuffle& shuffle) const override {
    return std::make_unique<SampleReader<Sample>>(dataset_, epoch, shuffle);
  }
  std::shared_ptr<const void> Make(const BatchInfo& info,
                                   const StreamSamples& read) const override {
    auto& all = *static_cast<std::vector<Sample>*>(read.samples.get());
    std::vector<Sample> samples;
    samples.reserve(info.sample_ids.size());
    for (const int32_t place : info.sample_ids)
      samples.push_back(std::move(all[static_cast<size_t>(place)]));
    return MakeBatch<B>(collate_, std::move(samples), info);
  }

 private:
  std::shared_ptr<const IterableDataset<Sample>> dataset_;
  Collate collate_;
};

}  // namespace dataset_source_internal

// Returns a source of batches B, which are collate(std::vector<Sample>).
template <typename B, AnyDataset D, typename Collate>
std::shared_ptr<const BatchSource> MakeSource(D dataset, Collate collate) {
  using Sample = SampleOf<D>;
  if constexpr (IndexedDataset<D>) {
    return std::make_shared<const dataset_source_internal::DatasetSource<B, Sample, Collate>>(
        ShareDataset(std::move(dataset)), std::move(collate));
  } else {
    return std::make_shared<const dataset_source_internal::StreamSource<B, Sample, Collate>>(
        ShareDataset(std::move(dataset)), std::move(collate));
  }
}

}  // namespace lathe
