// Small data sets of text for tests.
#pragma once

#include <cstdint>
#include <vector>

#include "lathe/data/datasets/dataset.h"

namespace lathe {

// Sample i has lengths[i] tokens with id i, and class i % 2.
inline TokenizedDataset DatasetOf(const std::vector<int64_t>& lengths) {
  TokenizedDataset data;
  data.has_labels = true;
  data.num_labels = 2;
  for (size_t i = 0; i < lengths.size(); ++i) {
    data.input_ids.insert(data.input_ids.end(), lengths[i], static_cast<int32_t>(i));
    data.offsets.push_back(data.offsets.back() + lengths[i]);
    data.classes.push_back(static_cast<int64_t>(i) % 2);
  }
  data.token_type_ids.resize(data.input_ids.size(), 0);
  return data;
}

inline TokenizedDataset DatasetOfSize(int64_t n) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < n; ++i) lengths.push_back(1 + i * 7919 % 31);
  return DatasetOf(lengths);
}

}  // namespace lathe
