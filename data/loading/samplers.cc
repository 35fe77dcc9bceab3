#include "lathe/data/loading/samplers.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/philox.h"
#include "lathe/data/loading/sample_order.h"

namespace lathe {
namespace {

constexpr auto kDraws = static_cast<uint32_t>(HashName("sampler/draws"));

// Returns a number in (0, 1), one of 2^53 at equal distances.
double Uniform(uint64_t draw, uint64_t seed, int64_t epoch) {
  constexpr int64_t kSteps = int64_t{1} << 53;
  const int64_t step = UniformBelow(kSteps, draw, seed, epoch, kDraws);
  return (static_cast<double>(step) + 0.5) / static_cast<double>(kSteps);
}

void CheckSize(int64_t n, int64_t num_samples) {
  Check(n >= 0 && num_samples >= 0, "sampler", "sizes must not be negative but are ", n, " and ",
        num_samples);
  Check(n > 0 || num_samples == 0, "sampler", "cannot draw from no samples");
}

// Draws by searching in the sums of the weights.
std::vector<int64_t> DrawWithReplacement(const std::vector<double>& sums, int64_t num_samples,
                                         uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < num_samples; ++i) {
    const double at = Uniform(static_cast<uint64_t>(i), seed, epoch) * sums.back();
    // The first sum above `at` is never that of a weight 0. Rounding may reach the last sum.
    auto found = std::upper_bound(sums.begin(), sums.end(), at);
    if (found == sums.end()) found = std::lower_bound(sums.begin(), sums.end(), sums.back());
    order.push_back(found - sums.begin());
  }
  return order;
}

// The method of Efraimidis and Spirakis, "Weighted random sampling with a reservoir" (2006): the
// samples with the smallest of -log(u_i) / w_i, in their order.
std::vector<int64_t> DrawWithoutReplacement(const std::vector<double>& weights, int64_t num_samples,
                                            uint64_t seed, int64_t epoch) {
  std::vector<std::pair<double, int64_t>> keys;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0)
      keys.emplace_back(-std::log(Uniform(i, seed, epoch)) / weights[i], static_cast<int64_t>(i));
  }
  std::partial_sort(keys.begin(), keys.begin() + num_samples, keys.end());
  std::vector<int64_t> order;
  for (int64_t i = 0; i < num_samples; ++i) order.push_back(keys[static_cast<size_t>(i)].second);
  return order;
}

}  // namespace

Sampler SequentialSampler(int64_t n) {
  CheckSize(n, 0);
  return {.num_samples = n, .order = [n](uint64_t, int64_t) {
            std::vector<int64_t> order(static_cast<size_t>(n));
            std::iota(order.begin(), order.end(), int64_t{0});
            return order;
          }};
}

Sampler RandomSampler(int64_t n, int64_t num_samples, bool replacement) {
  CheckSize(n, num_samples);
  const int64_t count = num_samples == 0 ? n : num_samples;
  return {.num_samples = count, .order = [=](uint64_t seed, int64_t epoch) {
            std::vector<int64_t> order;
            for (int64_t i = 0; replacement && i < count; ++i)
              order.push_back(UniformBelow(n, static_cast<uint64_t>(i), seed, epoch, kDraws));
            for (int64_t round = 0; std::ssize(order) < count; ++round) {
              const std::vector<int64_t> all = ShuffledOrder(n, seed, epoch, round);
              order.insert(order.end(), all.begin(),
                           all.begin() + std::min(n, count - std::ssize(order)));
            }
            return order;
          }};
}

Sampler WeightedRandomSampler(std::vector<double> weights, int64_t num_samples, bool replacement) {
  CheckSize(std::ssize(weights), num_samples);
  std::vector<double> sums;
  int64_t positive = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    Check(weights[i] >= 0 && std::isfinite(weights[i]), "sampler", "the weight of sample ", i,
          " must be finite and at least 0 but is ", weights[i]);
    sums.push_back((sums.empty() ? 0 : sums.back()) + weights[i]);
    positive += weights[i] > 0;
  }
  Check(num_samples == 0 || (positive > 0 && std::isfinite(sums.back())), "sampler",
        "the weights must have a positive, finite sum");
  Check(replacement || positive >= num_samples, "sampler", "cannot draw ", num_samples,
        " samples without replacement, because only ", positive, " have a positive weight");
  const auto shared = std::make_shared<const std::vector<double>>(replacement ? std::move(sums)
                                                                              : std::move(weights));
  return {.num_samples = num_samples, .order = [=](uint64_t seed, int64_t epoch) {
            return replacement ? DrawWithReplacement(*shared, num_samples, seed, epoch)
                               : DrawWithoutReplacement(*shared, num_samples, seed, epoch);
          }};
}

Sampler SubsetRandomSampler(std::vector<int64_t> indices) {
  const int64_t n = std::ssize(indices);
  return {.num_samples = n,
          .order = [n, shared = std::make_shared<const std::vector<int64_t>>(std::move(indices))](
                       uint64_t seed, int64_t epoch) {
            std::vector<int64_t> order = ShuffledOrder(n, seed, epoch);
            for (int64_t& i : order) i = (*shared)[static_cast<size_t>(i)];
            return order;
          }};
}

Sampler LengthGroupedSampler(std::vector<int64_t> lengths, int64_t batch_size) {
  CheckBatchSize("sampler", batch_size);
  const int64_t n = std::ssize(lengths);
  return {.num_samples = n,
          .order = [=, shared = std::make_shared<const std::vector<int64_t>>(std::move(lengths))](
                       uint64_t seed, int64_t epoch) {
            std::vector<int64_t> order = ShuffledOrder(n, seed, epoch);
            GroupByLength(*shared, batch_size, order);
            return order;
          }};
}

}  // namespace lathe
