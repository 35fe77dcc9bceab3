// TensorBatch: the tensors of a batch, and how samples are stacked into one.
//
//   for (const auto& [inputs, targets] : loader) ...       // loader: DataLoader<TensorBatch<2>>
//   for (const TensorBatch<>& batch : loader) Use(batch[0], batch.share.weight);
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lathe/core/tensor.h"
#include "lathe/data/loading/batch_info.h"
#include "lathe/data/loading/to_device.h"

namespace lathe {

// N tensors, of which most have one row for each sample. A DataLoader sets the BatchInfo.
template <size_t N = 2>
class TensorBatch : public BatchInfo {
 public:
  TensorBatch() = default;  // undefined tensors
  explicit TensorBatch(std::array<Tensor, N> tensors) : tensors_(std::move(tensors)) {}
  template <std::same_as<Tensor>... T>
  requires(sizeof...(T) == N) explicit TensorBatch(T... tensors)
      : tensors_{std::move(tensors)...} {}

  const Tensor& operator[](size_t i) const { return tensors_.at(i); }
  const std::array<Tensor, N>& tensors() const { return tensors_; }
  int64_t size() const { return tensors_[0].dim(0); }  // rows of the first tensor
  // Returns the same batch with its tensors on the device.
  TensorBatch To(Device device) const {
    TensorBatch batch = *this;
    batch.tensors_ = ToDevice(tensors_, device);
    return batch;
  }

  // For structured bindings.
  template <size_t i>
  const Tensor& get() const {
    return std::get<i>(tensors_);
  }

 private:
  std::array<Tensor, N> tensors_;
};
template <typename... T>
TensorBatch(T...) -> TensorBatch<sizeof...(T)>;

// Returns the tensors in one, below each other: n of shape [...] -> [n, ...]. `column` is their
// place in the samples, for errors. Throws if there are none, or if shapes, dtypes or devices
// differ.
Tensor StackTensors(const std::vector<Tensor>& rows, size_t column = 0);

namespace tensor_batch_internal {

template <typename T>
struct IsTuple : std::false_type {};
template <typename... T>
struct IsTuple<std::tuple<T...>> : std::true_type {};
template <typename A, typename B>
struct IsTuple<std::pair<A, B>> : std::true_type {};
template <typename T, size_t n>
struct IsTuple<std::array<T, n>> : std::true_type {};

// The type of a number's tensor.
template <typename T>
using Element = std::conditional_t<
    std::is_floating_point_v<T>, float,
    std::conditional_t<std::is_same_v<T, bool> || std::is_same_v<T, uint8_t>, T, int64_t>>;

template <typename T>
requires std::is_arithmetic_v<T> Tensor AsTensor(T number) {
  const Tensor tensor = Tensor::Empty({}, DTypeOf<Element<T>>::value);
  *tensor.data<Element<T>>() = static_cast<Element<T>>(number);
  return tensor;
}
template <typename T>
requires std::is_arithmetic_v<T> Tensor AsTensor(const std::vector<T>& numbers) {
  const Tensor tensor =
      Tensor::Empty({static_cast<int64_t>(numbers.size())}, DTypeOf<Element<T>>::value);
  Element<T>* to = tensor.data<Element<T>>();
  for (const T number : numbers) *to++ = static_cast<Element<T>>(number);
  return tensor;
}
inline Tensor AsTensor(Tensor tensor) { return tensor; }

template <typename T>
concept Column = requires(T value) {
  AsTensor(std::move(value));
};

template <typename Sample, size_t... i>
TensorBatch<sizeof...(i)> StackColumns(std::vector<Sample>& samples, std::index_sequence<i...>) {
  const auto stack = [&]<size_t column>(std::integral_constant<size_t, column>) {
    std::vector<Tensor> rows;
    rows.reserve(samples.size());
    for (Sample& sample : samples) rows.push_back(AsTensor(std::move(std::get<column>(sample))));
    return StackTensors(rows, column);
  };
  return TensorBatch<sizeof...(i)>(
      std::array<Tensor, sizeof...(i)>{stack(std::integral_constant<size_t, i>())...});
}

template <typename Sample, size_t... i>
constexpr bool AllColumns(std::index_sequence<i...>) {
  return (Column<std::remove_cvref_t<std::tuple_element_t<i, Sample>>> && ...);
}
template <typename Sample>
constexpr bool IsStackable() {
  if constexpr (IsTuple<Sample>::value) {
    return std::tuple_size_v<Sample> > 0 &&
           AllColumns<Sample>(std::make_index_sequence<std::tuple_size_v<Sample>>());
  } else {
    return Column<Sample>;
  }
}

}  // namespace tensor_batch_internal

// Samples that can be stacked: a tensor, a number, a vector of numbers, or an array, a pair or a
// tuple of such columns.
template <typename Sample>
concept Stackable = tensor_batch_internal::IsStackable<Sample>();

// Stacks each column of the samples. Floating-point numbers become float32, bool and uint8_t stay,
// and other integers become int64. Throws as StackTensors does.
template <Stackable Sample>
auto StackSamples(std::vector<Sample> samples) {
  if constexpr (tensor_batch_internal::IsTuple<Sample>::value) {
    return tensor_batch_internal::StackColumns(
        samples, std::make_index_sequence<std::tuple_size_v<Sample>>());
  } else {
    std::vector<Tensor> rows;
    rows.reserve(samples.size());
    for (Sample& sample : samples)
      rows.push_back(tensor_batch_internal::AsTensor(std::move(sample)));
    return TensorBatch<1>(StackTensors(rows));
  }
}

}  // namespace lathe

namespace std {

template <size_t N>
struct tuple_size<lathe::TensorBatch<N>> : integral_constant<size_t, N> {};
template <size_t i, size_t N>
struct tuple_element<i, lathe::TensorBatch<N>> {
  using type = lathe::Tensor;
};

}  // namespace std
