#include "lathe/data/loading/sample_order.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/philox.h"

namespace lathe {

// Scales 64 random bits instead of rejecting some, so that a draw does not depend on the others.
// The bias is below bound / 2^64.
int64_t UniformBelow(int64_t bound, uint64_t draw, uint64_t seed, int64_t epoch, uint32_t site) {
  const RandomKey key{.seed = seed, .step = static_cast<uint32_t>(epoch), .site = site};
  const uint64_t block = draw / 2;
  const PhiloxBlock bits =
      Philox4x32({{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), key.step, 0}},
                 key.key0(), key.key1());
  const int half = 2 * static_cast<int>(draw % 2);
  const uint64_t random = static_cast<uint64_t>(bits.v[half + 1]) << 32 | bits.v[half];
  return static_cast<int64_t>(static_cast<unsigned __int128>(random) * bound >> 64);
}

std::vector<int64_t> ShuffledOrder(int64_t n, uint64_t seed, int64_t epoch, int64_t round) {
  constexpr uint32_t kSite = static_cast<uint32_t>(HashName("data_loader/shuffle"));
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = n - 1; i > 0; --i) {  // Fisher-Yates
    const auto draw = static_cast<uint64_t>(round * n + i);
    std::swap(order[i], order[UniformBelow(i + 1, draw, seed, epoch, kSite)]);
  }
  return order;
}

void CheckBatchSize(const char* op, int64_t batch_size) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  Check(batch_size > 0 && batch_size <= kMost, op, "batch_size must be from 1 to ", kMost,
        " but is ", batch_size);
}

void GroupByLength(const std::vector<int64_t>& lengths, int64_t batch_size,
                   std::vector<int64_t>& order) {
  const int64_t n = static_cast<int64_t>(order.size());
  const int64_t mega =
      std::max<int64_t>(1, std::min<int64_t>(n / (4 * batch_size), 50)) * batch_size;
  int64_t longest = 0;  // where the longest sample is in `order`
  for (int64_t begin = 0; begin < n; begin += mega) {
    const int64_t end = std::min(begin + mega, n);
    std::stable_sort(order.begin() + begin, order.begin() + end,
                     [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });
    if (lengths[order[begin]] > lengths[order[longest]]) longest = begin;
  }
  // The longest sample comes first: if memory runs out, it does so in the first step.
  if (n > 0) std::swap(order[0], order[longest]);
}

namespace {

// Takes samples from long to short. Each goes to the batch that so far has the fewest tokens
// relative to its size.
std::vector<int64_t> EvenTokens(const std::vector<int64_t>& lengths, int64_t batch_size) {
  const int64_t n = std::ssize(lengths);
  std::vector<int64_t> by_length(static_cast<size_t>(n));
  std::iota(by_length.begin(), by_length.end(), int64_t{0});
  std::stable_sort(by_length.begin(), by_length.end(),
                   [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });
  std::vector<std::vector<int64_t>> batches(static_cast<size_t>((n + batch_size - 1) / batch_size));
  struct OpenBatch {  // a batch that is not full
    double tokens_per_sample;
    size_t batch;
    // Reversed, because std::priority_queue yields the largest.
    bool operator<(const OpenBatch& other) const {
      return std::pair(tokens_per_sample, batch) > std::pair(other.tokens_per_sample, other.batch);
    }
  };
  std::priority_queue<OpenBatch> open;
  for (size_t i = 0; i < batches.size(); ++i) open.push({0, i});
  for (const int64_t sample : by_length) {
    OpenBatch fewest = open.top();
    open.pop();
    std::vector<int64_t>& batch = batches[fewest.batch];
    const int64_t size = std::min(batch_size, n - static_cast<int64_t>(fewest.batch) * batch_size);
    batch.push_back(sample);
    fewest.tokens_per_sample += static_cast<double>(lengths[sample]) / static_cast<double>(size);
    if (std::ssize(batch) < size) open.push(fewest);
  }
  std::vector<int64_t> order;
  for (std::vector<int64_t>& batch : batches) {
    std::sort(batch.begin(), batch.end());
    order.insert(order.end(), batch.begin(), batch.end());
  }
  return order;
}

std::vector<int64_t> SampledOrder(int64_t n, const DataLoaderOptions& options, int64_t epoch) {
  const Sampler& sampler = options.sampler;
  std::vector<int64_t> order = sampler.order(options.seed, epoch);
  Check(std::ssize(order) == sampler.num_samples, "sampler", "expected an order of ",
        sampler.num_samples, " samples but got ", order.size());
  for (const int64_t i : order) {
    Check(i >= 0 && i < n, "sampler", "sample ", i, " does not exist; the data set has ", n,
          " samples");
  }
  return order;
}

}  // namespace

bool NeedsLengths(const DataLoaderOptions& options) {
  return !options.sampler.order && (options.even_tokens || options.group_by_length);
}

std::vector<int64_t> SampleOrder(int64_t n, const std::vector<int64_t>& lengths,
                                 const DataLoaderOptions& options, int64_t epoch) {
  if (options.sampler.order) return SampledOrder(n, options, epoch);
  if (options.even_tokens) return EvenTokens(lengths, options.batch_size);
  if (options.shuffle || options.group_by_length) {
    std::vector<int64_t> order = ShuffledOrder(n, options.seed, epoch);
    if (options.group_by_length) GroupByLength(lengths, options.batch_size, order);
    return order;
  }
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  return order;
}

// Takes samples from long to short. Each goes to the share with the fewest tokens so far.
std::vector<int> SplitByTokens(const std::vector<int64_t>& lengths, int parts) {
  std::vector<size_t> by_length(lengths.size());
  std::iota(by_length.begin(), by_length.end(), size_t{0});
  std::stable_sort(by_length.begin(), by_length.end(),
                   [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
  std::vector<int64_t> tokens(static_cast<size_t>(parts));
  std::vector<int> share(lengths.size());
  for (const size_t i : by_length) {
    const auto least = std::min_element(tokens.begin(), tokens.end());
    share[i] = static_cast<int>(least - tokens.begin());
    *least += lengths[i];
  }
  return share;
}

}  // namespace lathe
