// The order in which a loader visits samples, and how ranks share them.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "lathe/data/loading/loader_options.h"

namespace lathe {

// Returns a uniform number in [0, bound). It is number `draw` of those that belong to (seed, epoch)
// and to a place in the program, given by its name's hash.
int64_t UniformBelow(int64_t bound, uint64_t draw, uint64_t seed, int64_t epoch, uint32_t site);

// Returns a random permutation of 0 to n - 1, a function of (seed, epoch, round).
std::vector<int64_t> ShuffledOrder(int64_t n, uint64_t seed, int64_t epoch, int64_t round = 0);

// Throws `[op] ...` unless batch_size is from 1 to 2^31 - 1. A batch numbers its samples by int32.
void CheckBatchSize(const char* op, int64_t batch_size);

// Sorts a shuffled order by length, as Transformers' get_length_grouped_indices does.
void GroupByLength(const std::vector<int64_t>& lengths, int64_t batch_size,
                   std::vector<int64_t>& order);

// Returns true if the order of these options depends on the samples' lengths.
bool NeedsLengths(const DataLoaderOptions& options);

// Returns the order in which n samples are visited in `epoch`. It is a function of (seed, epoch)
// and, with group_by_length or even_tokens, of batch_size and the lengths. `lengths`: [n], or empty
// unless NeedsLengths. Throws if a sampler gives another number of samples than it says, or one
// that does not exist.
std::vector<int64_t> SampleOrder(int64_t n, const std::vector<int64_t>& lengths,
                                 const DataLoaderOptions& options, int64_t epoch);

// Splits samples of these lengths into `parts` shares with nearly the same number of tokens.
// Returns each sample's share. If there are fewer samples than parts, some shares are empty.
std::vector<int> SplitByTokens(const std::vector<int64_t>& lengths, int parts);

}  // namespace lathe
