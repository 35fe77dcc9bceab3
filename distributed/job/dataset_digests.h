// The facts about a data set by which ranks compare what each of them has read.
#pragma once

#include <string>

#include "lathe/data/datasets/dataset.h"
#include "lathe/distributed/groups/collectives.h"

namespace lathe {

// Returns the number of samples and digests of all their contents, for CheckSame. `name`
// ("validation") tells several sets apart and may be empty: "validation dataset of size", "digest
// of validation labels".
NamedValues DatasetDigests(const TokenizedDataset& data, const std::string& name = "");

}  // namespace lathe
