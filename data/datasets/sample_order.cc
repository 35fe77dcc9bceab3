// The order in which a DataLoader visits samples.
#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

#include "lathe/core/base/philox.h"
#include "lathe/data/datasets/data_loader.h"

namespace lathe {
namespace {

// Returns a uniform number in [0, bound): number `draw` of those that belong to (seed, epoch). It
// scales 64 random bits instead of rejecting some, so that a draw does not depend on the others.
// The bias is below bound / 2^64.
int64_t UniformBelow(int64_t bound, uint64_t draw, uint64_t seed, int64_t epoch) {
  constexpr uint32_t kSite = static_cast<uint32_t>(HashName("data_loader/shuffle"));
  const RandomKey key{.seed = seed, .step = static_cast<uint32_t>(epoch), .site = kSite};
  const uint64_t block = draw / 2;
  const PhiloxBlock bits =
      Philox4x32({{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), key.step, 0}},
                 key.key0(), key.key1());
  const int half = 2 * static_cast<int>(draw % 2);
  const uint64_t random = static_cast<uint64_t>(bits.v[half + 1]) << 32 | bits.v[half];
  return static_cast<int64_t>(static_cast<unsigned __int128>(random) * bound >> 64);
}

// Groups a shuffled order as Transformers' get_length_grouped_indices does.
void GroupByLength(const TokenizedDataset& dataset, int64_t batch_size,
                   std::vector<int64_t>& order) {
  const int64_t n = static_cast<int64_t>(order.size());
  const int64_t mega =
      std::max<int64_t>(1, std::min<int64_t>(n / (4 * batch_size), 50)) * batch_size;
  int64_t longest = 0;  // where the longest sample is in `order`
  for (int64_t begin = 0; begin < n; begin += mega) {
    const int64_t end = std::min(begin + mega, n);
    std::stable_sort(order.begin() + begin, order.begin() + end,
                     [&](int64_t a, int64_t b) { return dataset.length(a) > dataset.length(b); });
    if (dataset.length(order[begin]) > dataset.length(order[longest])) longest = begin;
  }
  // The longest sample comes first: if memory runs out, it does so in the first step.
  if (n > 0) std::swap(order[0], order[longest]);
}

// Takes samples from long to short. Each goes to the batch that so far has the fewest tokens
// relative to its size.
std::vector<int64_t> EvenTokens(const TokenizedDataset& dataset, int64_t batch_size) {
  const int64_t n = dataset.size();
  std::vector<int64_t> by_length(static_cast<size_t>(n));
  std::iota(by_length.begin(), by_length.end(), int64_t{0});
  std::stable_sort(by_length.begin(), by_length.end(),
                   [&](int64_t a, int64_t b) { return dataset.length(a) > dataset.length(b); });
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
    fewest.tokens_per_sample +=
        static_cast<double>(dataset.length(sample)) / static_cast<double>(size);
    if (std::ssize(batch) < size) open.push(fewest);
  }
  std::vector<int64_t> order;
  for (std::vector<int64_t>& batch : batches) {
    std::sort(batch.begin(), batch.end());
    order.insert(order.end(), batch.begin(), batch.end());
  }
  return order;
}

}  // namespace

std::vector<int64_t> SampleOrder(const TokenizedDataset& dataset, const DataLoaderOptions& options,
                                 int64_t epoch) {
  if (options.even_tokens) return EvenTokens(dataset, options.batch_size);
  std::vector<int64_t> order(dataset.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  if (options.shuffle || options.group_by_length) {
    for (int64_t i = dataset.size() - 1; i > 0; --i) {  // Fisher-Yates
      std::swap(order[i],
                order[UniformBelow(i + 1, static_cast<uint64_t>(i), options.seed, epoch)]);
    }
  }
  if (options.group_by_length) GroupByLength(dataset, options.batch_size, order);
  return order;
}

}  // namespace lathe
