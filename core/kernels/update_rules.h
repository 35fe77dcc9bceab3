// The updates of the optimizers besides AdamW and SGD, which the host and devices share. A new
// elementwise optimizer is a struct here, a line in ElementwiseRules, and perhaps a RateKind.
#pragma once

#include <cmath>
#include <cstdint>
#include <variant>

#include "lathe/core/kernels/optimizer_kernels.h"

namespace lathe::update_rules {

// The most numbers that a rule keeps for each element.
constexpr int kMaxMoments = 3;

// Returns the constants of update number t of a range. Not for AdamW and SGD.
template <typename T = double>
constexpr DeviceRates RatesOf(const RateRule& rule, T lr, T weight_decay, T t) {
  const T bias1 = 1 - std::pow(static_cast<T>(rule.beta1), t);
  const T bias2 = 1 - std::pow(static_cast<T>(rule.beta2), t);
  DeviceRates rates;
  rates.decay = static_cast<float>(weight_decay);
  rates.step_size = static_cast<float>(lr);
  switch (rule.kind) {
    case RateKind::kAdam:
      rates.step_size = static_cast<float>(lr / bias1);
      rates.inverse_bias2 = static_cast<float>(1 / std::sqrt(bias2));
      break;
    case RateKind::kLamb:
      rates.take = static_cast<float>(1 / bias1);
      rates.inverse_bias2 = static_cast<float>(1 / std::sqrt(bias2));
      break;
    case RateKind::kLion:
      rates.decay = static_cast<float>(1 - lr * weight_decay);
      break;
    case RateKind::kAdagrad:
      rates.step_size = static_cast<float>(lr / (1 + (t - 1) * rule.decay));
      break;
    case RateKind::kAdafactor:
      rates.decay = static_cast<float>(1 - lr * weight_decay);
      rates.take = static_cast<float>(std::pow(t, static_cast<T>(rule.decay)));
      if (rule.limited && 1 / std::sqrt(t) < lr) {
        rates.step_size = static_cast<float>(1 / std::sqrt(t));
      }
      break;
    default:
      break;
  }
  return rates;
}

// --- Elementwise rules ---
//
// A rule updates the value p and its moments s from the gradient g. Moments that are not kept hold
// 0 before the call, and what it writes there is lost.

// Adam (Kingma and Ba 2015) as PyTorch has it: the decay is a part of the gradient.
struct Adam {
  static constexpr int kMoments = 2;
  float one_minus_beta1 = 0, beta2 = 0, one_minus_beta2 = 0, eps = 0;
  template <typename T>
  constexpr void operator()(T& p, T (&s)[kMaxMoments], T g, const DeviceRates& rates) const {
    g += rates.decay * p;
    s[0] += one_minus_beta1 * (g - s[0]);
    s[1] = beta2 * s[1] + one_minus_beta2 * g * g;
    p -= rates.step_size * s[0] / (std::sqrt(s[1]) * rates.inverse_bias2 + eps);
  }
  bool operator==(const Adam&) const = default;
};

// Lion (Chen et al. 2023, algorithm 2).
struct Lion {
  static constexpr int kMoments = 1;
  float beta1 = 0, one_minus_beta1 = 0, beta2 = 0, one_minus_beta2 = 0;
  template <typename T>
  constexpr void operator()(T& p, T (&s)[kMaxMoments], T g, const DeviceRates& rates) const {
    const T u = beta1 * s[0] + one_minus_beta1 * g;
    const T sign = u > 0 ? T(1) : u < 0 ? T(-1) : u;  // NaN stays NaN
    p = p * rates.decay - rates.step_size * sign;
    s[0] = beta2 * s[0] + one_minus_beta2 * g;
  }
  bool operator==(const Lion&) const = default;
};

// RMSprop as PyTorch has it. Moments: of squares; the momentum's buffer; the mean gradient.
struct RmsProp {
  static constexpr int kMoments = 3;
  float alpha = 0, one_minus_alpha = 0, eps = 0, momentum = 0;
  bool centered = false;
  template <typename T>
  constexpr void operator()(T& p, T (&s)[kMaxMoments], T g, const DeviceRates& rates) const {
    g += rates.decay * p;
    s[0] = alpha * s[0] + one_minus_alpha * g * g;
    T square = s[0];
    if (centered) {
      s[2] += one_minus_alpha * (g - s[2]);
      square -= s[2] * s[2];
    }
    s[1] = momentum * s[1] + g / (std::sqrt(square) + eps);  // without momentum the step alone
    p -= rates.step_size * s[1];
  }
  bool operator==(const RmsProp&) const = default;
};

// Adagrad (Duchi et al. 2011) as PyTorch has it.
struct Adagrad {
  static constexpr int kMoments = 1;
  float eps = 0;
  template <typename T>
  constexpr void operator()(T& p, T (&s)[kMaxMoments], T g, const DeviceRates& rates) const {
    g += rates.decay * p;
    s[0] += g * g;
    p -= rates.step_size * g / (std::sqrt(s[0]) + eps);
  }
  bool operator==(const Adagrad&) const = default;
};

// --- Rules that look at a parameter as a whole ---

// LAMB (You et al. 2020, algorithm 2). The moments are Adam's. A parameter's step is
//   ratio * step_size * direction,  ratio = |p| / |direction|, or 1 if either is 0
struct Lamb {
  float one_minus_beta1 = 0, beta2 = 0, one_minus_beta2 = 0, eps = 0;
  template <typename T>
  constexpr void UpdateMoments(T& m, T& v, T g) const {
    m += one_minus_beta1 * (g - m);
    v = beta2 * v + one_minus_beta2 * g * g;
  }
  template <typename T>
  constexpr T Direction(T p, T m, T v, const DeviceRates& rates) const {
    return m * rates.take / (std::sqrt(v) * rates.inverse_bias2 + eps) + rates.decay * p;
  }
  // Takes the sums of squares of p and of its direction.
  template <typename T>
  static constexpr T Ratio(T values, T directions) {
    return values > 0 && directions > 0 ? std::sqrt(values) / std::sqrt(directions) : T(1);
  }
  bool operator==(const Lamb&) const = default;
};

// How a parameter's second moments are kept: as the means of rows and of columns of matrices, or,
// without columns, as they are.
struct FactoredShape {
  int64_t matrices = 1, rows = 0, cols = 0;  // cols 0: `rows` moments, one for each element
  int64_t begin = 0;  // of its moments: those of all rows, then those of all columns
  int64_t means = 0;  // of its matrices' means
  constexpr int64_t NumRows() const { return matrices * rows; }
  constexpr int64_t Size() const { return matrices * (rows + cols); }
  bool operator==(const FactoredShape&) const = default;
};

// Adafactor (Shazeer and Stern 2018) without momentum. A parameter's update u is the gradient over
// the root of the estimated second moments. Its step is
//   rate * u / max(1, rms(u) / most),  rate = step_size * max(least, rms(p)), or step_size
struct Adafactor {
  float added = 0;         // to each square of a gradient
  float least_mean = 0;    // of a matrix's moments of rows
  float least_square = 0;  // of an estimated second moment
  float least = 0, most = 1;
  bool scales = true;  // by the root mean square of the values
  // Divides by the root of a row's moment and by that of a column's, one after the other. Then no
  // product of small or large moments leaves the range of float32.
  bool divides_twice = false;
  const FactoredShape* shapes =
      nullptr;  // by DeviceRange::counter, on the device; null on the host
  template <typename T>
  static constexpr T RootOfRow(T row, T mean) {
    return std::sqrt(row) / std::sqrt(mean);
  }
  // Returns u of an element of a matrix whose gradient is g.
  template <typename T>
  constexpr T Update(T g, T row, T col, T mean) const {
    if (divides_twice) return g / RootOfRow(row, mean) / std::sqrt(col);
    return g / std::sqrt(Limited(row * col / mean));
  }
  template <typename T>
  constexpr T Limited(T square) const {
    return square < least_square ? T(least_square) : square;
  }
  template <typename T>
  constexpr T LimitedMean(T mean) const {
    return mean < least_mean ? T(least_mean) : mean;
  }
  // Returns the factor of u. Takes the sums of squares of p and of u, and their number.
  template <typename T>
  constexpr T Step(T values, T updates, T n, T step_size) const {
    const T rms = std::sqrt(values / n), size = std::sqrt(updates / n) / most;
    const T rate = !scales ? step_size : step_size * (rms < least ? T(least) : rms);
    return size > 1 ? rate / size : rate;
  }
  bool operator==(const Adafactor&) const = default;
};

template <typename...>
struct List {};
using ElementwiseRules = List<Adam, Lion, RmsProp, Adagrad>;

// The rule of an optimizer; none for AdamW and SGD, which have kernels of their own.
using Rule = std::variant<std::monostate, Adam, Lion, RmsProp, Adagrad, Lamb, Adafactor>;

}  // namespace lathe::update_rules
