// The facts about a data set by which ranks compare what each of them has read.
#pragma once

#include <string>

#include "lathe/data/datasets/dataset.h"
#include "lathe/distributed/groups/collectives.h"

namespace lathe {

enum class DatasetFact { kSize, kTokenIds, kTokenTypeIds, kLengths, kLabels, kSampleWeights };
inline constexpr DatasetFact kDatasetFacts[] = {
    DatasetFact::kSize,    DatasetFact::kTokenIds, DatasetFact::kTokenTypeIds,
    DatasetFact::kLengths, DatasetFact::kLabels,   DatasetFact::kSampleWeights};

// Returns how DatasetDigests names a fact of the set `name`: "validation dataset of size", "digest
// of validation labels". Checkpoints hold these names.
std::string FactName(DatasetFact fact, const std::string& name);

// Returns the number of samples and digests of all their contents, for CheckSame. `name`
// ("validation") tells several sets apart and may be empty.
NamedValues DatasetDigests(const TokenizedDataset& data, const std::string& name = "");

}  // namespace lathe
