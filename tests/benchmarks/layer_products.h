// Times the matrix products of a model's dense layers alone. Benchmarks compare whole training
// steps with them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "lathe/core/device_backend.h"
#include "lathe/core/gemm.h"
#include "lathe/core/tensor.h"
#include "lathe/models/architecture.h"
#include "lathe/models/config/config.h"

namespace lathe {

// The dense layers of an encoder: `hidden` is H and `intermediate` is I.
struct LayerShape {
  int64_t hidden, intermediate, layers;
  bool gated;       // the first product of the feed-forward part is [H, 2 I]
  bool first_only;  // the head reads the first token, so the last layer computes no other
};

inline LayerShape ShapeOf(const PretrainedConfig& config) {
  const std::string family = ModelTypeOf(config);
  const bool gated = family == "modernbert" || family == "eurobert" || family == "nomic_bert";
  return {.hidden = config.GetInt("hidden_size", config.GetInt("dim", 768)),
          .intermediate = config.GetInt("intermediate_size", config.GetInt("hidden_dim", 3072)),
          .layers = config.GetInt("num_hidden_layers", config.GetInt("n_layers", 12)),
          .gated = gated,
          .first_only = config.GetString("classifier_pooling", "cls") == "cls"};
}

// Returns the operations of the products in one step over T tokens in B texts. The backward pass
// takes twice as many as the forward pass. In the last layer only keys and values are computed for
// all tokens if the head reads the first token. Attention's own products are not counted, nor are
// those of tables of positions.
inline double ProductOperations(const LayerShape& shape, double T, double B) {
  const double H = static_cast<double>(shape.hidden), I = static_cast<double>(shape.intermediate);
  const double L = static_cast<double>(shape.layers), wide = shape.gated ? 3 : 2;
  const double layer = 4 * H * H + wide * H * I;
  if (!shape.first_only) return 6 * T * L * layer;
  return 6 * (T * ((L - 1) * layer + 2 * H * H) + B * (2 * H * H + wide * H * I));
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
  LayerProducts(const LayerShape& shape, int64_t most_rows, DType dtype, Device device)
      : hidden_(shape.hidden),
        intermediate_(shape.intermediate),
        first_((shape.gated ? 2 : 1) * shape.intermediate),
        device_(device),
        x_(Spread({most_rows, first_}, dtype, device)),
        y_(Spread({most_rows, first_}, dtype, device)),
        w_(Spread({first_, hidden_}, dtype, device)),
        dw_(Spread({first_, hidden_}, DType::kF32, device)),
        bias_(Spread({first_}, DType::kF32, device)),
        out_(Spread({most_rows, first_}, dtype, device)) {}

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
    std::vector<Layer> layers = {{H, H}, {H, H}, {H, first_}, {I, H}};
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
  int64_t first_;  // outputs of the feed-forward part's first product
  Device device_;
  Tensor x_, y_, w_, dw_, bias_, out_;
};

// Returns the operations a second of products alone on a device.
inline double ProductCeiling(const LayerShape& shape, int64_t rows, DType dtype, Device device) {
  const LayerProducts products(shape, rows, dtype, device);
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
