// ToDevice: a batch on a device, as `batch.to(device)` in PyTorch.
//
//   for (const auto& batch : loader) {
//     const auto [inputs, targets] = ToDevice(batch, device);   // any batch of tensors
//     ...
//   }
//   loader.SetDevice(device);   // or: the loader does it with each batch, as Accelerator::Prepare
//                               // tells it to
//
// A batch of one's own needs a function for it:
//
//   struct Pairs {
//     Tensor first, second;
//     Pairs To(Device device) const { return {ToDevice(first, device), ToDevice(second, device)}; }
//   };
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lathe/core/tensor.h"

namespace lathe {

namespace to_device_internal {

template <typename T>
concept HasTo = requires(const T& value, Device device) {
  { value.To(device) } -> std::same_as<T>;
};

// Moves values of type T: `kCan` says whether it can, and To does it. This template is for types
// with a function To, and for those without tensors.
template <typename T>
struct Mover {
  static constexpr bool kCan =
      HasTo<T> || std::is_arithmetic_v<T> || std::is_enum_v<T> || std::same_as<T, std::string>;
  static T To(const T& value, Device device) {
    if constexpr (HasTo<T>) {
      return value.To(device);
    } else {
      return value;
    }
  }
};

template <>
struct Mover<Tensor> {
  static constexpr bool kCan = true;
  static Tensor To(const Tensor& tensor, Device device) {
    return tensor.defined() ? tensor.To(device) : tensor;
  }
};

template <typename... T>
struct Mover<std::tuple<T...>> {
  static constexpr bool kCan = (Mover<T>::kCan && ...);
  static std::tuple<T...> To(const std::tuple<T...>& values, Device device) {
    return std::apply(
        [&](const T&... value) { return std::tuple<T...>(Mover<T>::To(value, device)...); },
        values);
  }
};

template <typename A, typename B>
struct Mover<std::pair<A, B>> {
  static constexpr bool kCan = Mover<A>::kCan && Mover<B>::kCan;
  static std::pair<A, B> To(const std::pair<A, B>& values, Device device) {
    return {Mover<A>::To(values.first, device), Mover<B>::To(values.second, device)};
  }
};

template <typename T>
struct Mover<std::optional<T>> {
  static constexpr bool kCan = Mover<T>::kCan;
  static std::optional<T> To(const std::optional<T>& value, Device device) {
    return value ? std::optional<T>(Mover<T>::To(*value, device)) : std::nullopt;
  }
};

template <typename T, size_t n>
struct Mover<std::array<T, n>> {
  static constexpr bool kCan = Mover<T>::kCan;
  static std::array<T, n> To(std::array<T, n> values, Device device) {
    for (T& value : values) value = Mover<T>::To(value, device);
    return values;
  }
};

template <typename T>
struct Mover<std::vector<T>> {
  static constexpr bool kCan = Mover<T>::kCan;
  static std::vector<T> To(const std::vector<T>& values, Device device) {
    std::vector<T> there;
    there.reserve(values.size());
    for (const auto& value : values) there.push_back(Mover<T>::To(value, device));
    return there;
  }
};

template <typename Map>
struct MapMover {
  static constexpr bool kCan = Mover<typename Map::mapped_type>::kCan;
  static Map To(Map map, Device device) {
    for (auto& [key, value] : map) value = Mover<typename Map::mapped_type>::To(value, device);
    return map;
  }
};
template <typename K, typename V>
struct Mover<std::map<K, V>> : MapMover<std::map<K, V>> {};
template <typename K, typename V>
struct Mover<std::unordered_map<K, V>> : MapMover<std::unordered_map<K, V>> {};

}  // namespace to_device_internal

// What ToDevice takes: a tensor, a TensorBatch, a type with a function To(Device) that returns the
// same type; pairs, tuples, arrays, vectors, optionals and maps of these. Numbers, enumerations and
// strings may be among them, and stay as they are.
template <typename T>
concept MovableToDevice = to_device_internal::Mover<T>::kCan;

// Returns the batch with its tensors on the device. Tensors that are there already, and undefined
// ones, are not copied. Records nothing.
template <MovableToDevice T>
T ToDevice(const T& batch, Device device) {
  return to_device_internal::Mover<T>::To(batch, device);
}

}  // namespace lathe
