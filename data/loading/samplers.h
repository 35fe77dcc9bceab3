// Orders of samples, as DataLoaderOptions::sampler takes them. Names are PyTorch's.
//
//   DataLoader train(data, {.batch_size = 32, .sampler = WeightedRandomSampler(weights, 1000)});
//
// All are functions of (seed, epoch), so that each rank computes the same order.
#pragma once

#include <cstdint>
#include <vector>

#include "lathe/data/loading/loader_options.h"

namespace lathe {

// 0, 1, ..., n - 1.
Sampler SequentialSampler(int64_t n);

// A permutation of 0 to n - 1. With another `num_samples` than 0 it has that many: the beginning of
// one permutation after another. With `replacement` each sample is drawn from all n.
Sampler RandomSampler(int64_t n, int64_t num_samples = 0, bool replacement = false);

// Draws `num_samples` with probabilities in proportion to `weights`: [n]. Without `replacement` no
// sample comes twice, as from torch.multinomial. Throws for negative or infinite weights, for those
// with the sum 0, and without replacement if fewer than num_samples are positive.
Sampler WeightedRandomSampler(std::vector<double> weights, int64_t num_samples,
                              bool replacement = true);

// The indices in random order.
Sampler SubsetRandomSampler(std::vector<int64_t> indices);

// The order of DataLoaderOptions::group_by_length, of samples with these lengths. `batch_size` is
// that of all ranks together.
Sampler LengthGroupedSampler(std::vector<int64_t> lengths, int64_t batch_size);

}  // namespace lathe
