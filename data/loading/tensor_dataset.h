// TensorDataset: the rows of tensors that share their first dimension.
//
//   TensorDataset data(inputs, targets);            // [n, 20] and [n]: sample i is row i of each
//   DataLoader train(data, {.batch_size = 32, .shuffle = true});
//   for (const auto& [inputs, targets] : train) ... // [32, 20] and [32]
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/tensor.h"
#include "lathe/data/loading/dataset.h"

namespace lathe {

// Throws unless all tensors are on the host and have the same number of rows, and there is one.
void CheckRows(const std::vector<Tensor>& tensors);
// Returns row i as a view: [n, ...] -> [...].
Tensor RowOf(const Tensor& tensor, int64_t i);
// Returns a digest of the tensor's shape, type and contents.
std::string FingerprintOf(const Tensor& tensor);

template <size_t N>
class TensorDataset : public Dataset<std::array<Tensor, N>> {
 public:
  // Each tensor: [n, ...], on the host, of any dtype. Keeps references to them.
  template <std::same_as<Tensor>... T>
  requires(sizeof...(T) == N && N > 0) explicit TensorDataset(T... tensors)
      : tensors_{std::move(tensors)...} {
    CheckRows({tensors_.begin(), tensors_.end()});
  }

  int64_t Size() const override { return tensors_[0].dim(0); }
  std::array<Tensor, N> Get(int64_t i) const override {
    std::array<Tensor, N> rows;
    for (size_t k = 0; k < N; ++k) rows[k] = RowOf(tensors_[k], i);
    return rows;
  }
  std::string Fingerprint() const override {
    std::string all;
    for (const Tensor& tensor : tensors_) all += FingerprintOf(tensor) + " ";
    return all;
  }
  const std::array<Tensor, N>& tensors() const { return tensors_; }

 private:
  std::array<Tensor, N> tensors_;
};
template <std::same_as<Tensor>... T>
TensorDataset(T...) -> TensorDataset<sizeof...(T)>;

}  // namespace lathe
