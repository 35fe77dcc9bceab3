// Times the matrix products of a BERT's dense layers alone. Benchmarks compare whole training steps
// with them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "lathe/core/device_backend.h"
#include "lathe/core/gemm.h"
#include "lathe/core/tensor.h"
#include "lathe/models/config/config.h"

namespace lathe {

// Returns the operations of the products in one step over T tokens in B texts. The backward pass
// takes twice as many as the forward pass. In the last layer only keys and values are computed for
// all tokens. Attention's own products are not counted.
inline double ProductOperations(const PretrainedConfig& config, double T, double B) {
  const double H = static_cast<double>(config.GetInt("hidden_size", 768));
  const double I = static_cast<double>(config.GetInt("intermediate_size", 3072));
  const double L = static_cast<double>(config.GetInt("num_hidden_layers", 12));
  const double layer = 4 * H * H + 2 * H * I;
  return 6 * (T * ((L - 1) * layer + 2 * H * H) + B * (2 * H * H + 2 * H * I));
}

// Returns numbers that are spread, because a GPU's clock depends on them. The same numbers repeat.
inline Tensor Spread(const Shape& shape, DType dtype, Device device) {
  const int64_t n = NumElements(shape), period = std::min(n, int64_t{1} << 22);
  std::vector<float> values(static_cast<size_t>(period));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(static_cast<uint32_t>(i * 2654435761u) >> 8) * 0x1p-24f - 0.5f;
  }
  const Tensor part = Tensor::FromVector(values).To(dtype).To(device);
  if (n == period) return part.Reshape(shape);
  // The host would take seconds to make all numbers.
  const Tensor all = Tensor::Empty(shape, dtype, device);
  for (int64_t at = 0; at < n; at += period) {
    const int64_t bytes = std::min(period, n - at) * SizeOf(dtype);
    char* const to = static_cast<char*>(all.raw_data()) + at * SizeOf(dtype);
    if (device.is_cpu()) {
      std::memcpy(to, part.raw_data(), static_cast<size_t>(bytes));
    } else {
      BackendOf(device).CopyOnDevice(to, part.raw_data(), bytes);
    }
  }
  return all;
}

// The products of one layer alone, with at most `most_rows` rows.
class LayerProducts {
 public:
  LayerProducts(const PretrainedConfig& config, int64_t most_rows, DType dtype, Device device)
      : hidden_(config.GetInt("hidden_size", 768)),
        intermediate_(config.GetInt("intermediate_size", 3072)),
        device_(device),
        x_(Spread({most_rows, intermediate_}, dtype, device)),
        y_(Spread({most_rows, intermediate_}, dtype, device)),
        w_(Spread({intermediate_, hidden_}, dtype, device)),
        dw_(Spread({intermediate_, hidden_}, DType::kF32, device)),
        bias_(Spread({intermediate_}, DType::kF32, device)),
        out_(Spread({most_rows, intermediate_}, dtype, device)) {}

  double bytes() const {
    double sum = 0;
    for (const Tensor* t : {&x_, &y_, &w_, &dw_, &bias_, &out_})
      sum += static_cast<double>(t->bytes());
    return sum;
  }

  // Runs the products forward, for input gradients and for weight gradients, once each. Returns
  // their number of operations.
  double Run(int64_t rows) const {
    switch (x_.dtype()) {
      case DType::kBF16:
        return RunAs<BFloat16>(rows);
      case DType::kF16:
        return RunAs<Float16>(rows);
      default:
        return RunAs<float>(rows);
    }
  }

 private:
  template <typename T>
  double RunAs(int64_t rows) const {
    struct Layer {
      int64_t in, out;
    };
    const int64_t H = hidden_, I = intermediate_;
    double operations = 0;
    std::vector<Layer> layers = {{H, H}, {H, H}, {H, I}, {I, H}};
    if (device_.is_cpu()) {
      layers.insert(layers.end(), {{H, H}, {H, H}});
    } else {
      layers.push_back({H, 2 * H});  // keys and values in one product
    }
    for (const Layer& l : layers) {
      Gemm(device_, {.b = true}, rows, l.out, l.in, x_.data<T>(), l.in, w_.data<T>(), l.in, 0.0,
           out_.data<T>(), l.out, bias_.data<float>());
      Gemm(device_, {}, rows, l.in, l.out, y_.data<T>(), l.out, w_.data<T>(), l.in, 0.0,
           out_.data<T>(), l.in);
      Gemm(device_, {.a = true}, l.out, l.in, rows, y_.data<T>(), l.out, x_.data<T>(), l.in, 1.0,
           dw_.data<float>(), l.in);
      operations += 6.0 * static_cast<double>(rows * l.in * l.out);
    }
    return operations;
  }

  int64_t hidden_, intermediate_;
  Device device_;
  Tensor x_, y_, w_, dw_, bias_, out_;
};

// Returns the operations a second of products alone on a device.
inline double ProductCeiling(const PretrainedConfig& config, int64_t rows, DType dtype,
                             Device device) {
  const LayerProducts products(config, rows, dtype, device);
  constexpr int kRounds = 20;  // waiting for a GPU takes a while itself
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    double operations = 0;
    BackendOf(device).Synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int round = 0; round < kRounds; ++round) operations += products.Run(rows);
    BackendOf(device).Synchronize();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::max(best, operations / took.count());
  }
  return best;
}

}  // namespace lathe
