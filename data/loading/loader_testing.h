// Small data sets for the tests of loaders.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/data/loading/dataset.h"
#include "lathe/data/loading/tensor_dataset.h"

namespace lathe {

// Returns the message of the Error that body throws; empty if there is none.
inline std::string MessageOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.message();
  }
  return "";
}

// Row i of the inputs is i, i + 0.5; its target is 10 i.
inline TensorDataset<2> Rows(int64_t n) {
  std::vector<float> inputs;
  std::vector<int64_t> targets;
  for (int64_t i = 0; i < n; ++i) {
    inputs.push_back(static_cast<float>(i));
    inputs.push_back(static_cast<float>(i) + 0.5f);
    targets.push_back(10 * i);
  }
  return TensorDataset(Tensor::FromVector(inputs, {n, 2}), Tensor::FromVector(targets));
}

// Sample i is i.
struct Numbers : Dataset<int64_t> {
  explicit Numbers(int64_t size) : n(size) {}
  int64_t Size() const override { return n; }
  int64_t Get(int64_t i) const override { return i; }
  int64_t n;
};

}  // namespace lathe
