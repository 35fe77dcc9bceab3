// BatchSource: makes the batches of a loader from a data set. It hides the types of samples and
// batches from the loader's machinery.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lathe/data/loading/batch_info.h"

namespace lathe {

// Samples that were read from a stream for one global batch.
struct StreamSamples {
  std::vector<int64_t> numbers = {};        // the place of each sample in the stream
  std::vector<double> weights = {};         // what each adds to the divisor of the mean loss
  std::shared_ptr<void> samples = nullptr;  // of a type that the source knows

  int64_t count() const { return std::ssize(numbers); }
};

// How the samples of a stream are shuffled: each is drawn from a buffer of so many. Without one the
// order is the stream's.
struct StreamShuffle {
  int64_t buffer_size = 0;
  uint64_t seed = 0;
};

// One epoch of a stream. One thread at a time uses it.
class StreamReader {
 public:
  virtual ~StreamReader() = default;
  // Returns the next n samples; fewer at the end only.
  virtual StreamSamples Read(int64_t n) = 0;
};

// Several threads may use a source at once.
class BatchSource {
 public:
  static constexpr int64_t kStream = -1;

  virtual ~BatchSource() = default;
  // Returns the number of samples in the data set, or kStream if only reading tells it.
  virtual int64_t size() const = 0;
  // Returns the length of sample i: how much work it is beside others, at least 0.
  virtual int64_t Length(int64_t /*i*/) const { return 1; }
  // Returns what divides the mean loss of these samples (BatchShare::weight).
  virtual double Weight(std::span<const int64_t> indices) const {
    return static_cast<double>(indices.size());
  }
  // Returns the batch of the samples `info.indices`. A stream's samples are those in the places
  // `info.sample_ids` of `read`, and may be changed.
  virtual std::shared_ptr<const void> Make(const BatchInfo& info,
                                           const StreamSamples& read) const = 0;
  // Begins an epoch of a stream.
  virtual std::unique_ptr<StreamReader> Open(int64_t /*epoch*/,
                                             const StreamShuffle& /*shuffle*/) const {
    return nullptr;
  }
  // Returns facts about the data set by which ranks notice that they hold different ones.
  virtual std::vector<std::pair<std::string, std::string>> Facts() const { return {}; }
};

}  // namespace lathe
