// The functions that the elementwise ops apply to each element. The host maps them over float or
// double. Devices map them over float32, bfloat16 and float16 and compute in float.
//
// A new op adds its function here and to the lists at the end, which the kernels of the CPU and of
// devices are built from. All functions are always inlined, because kernels of the CPU include them
// at several instruction set levels.
#pragma once

#include <cmath>
#include <numbers>

#include "lathe/core/kernels/activation_functions.h"

namespace lathe::functions {

// The activations' formulas with the standard library's functions, for the host and devices.
struct StandardMath {
  template <typename T>
  static constexpr T Exp(T v) {
    return std::exp(v);
  }
};
using Activations = ActivationFunctions<StandardMath>;

// --- functions of one element ---

struct Scale {
  double factor;
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T v) const {
    return v * static_cast<T>(factor);
  }
};
struct AddScalar {
  double value;
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T v) const {
    return v + static_cast<T>(value);
  }
};
struct Exp {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T v) const {
    return std::exp(v);
  }
};
struct Log {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T v) const {
    return std::log(v);
  }
};
struct Sqrt {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T v) const {
    return std::sqrt(v);
  }
};
struct Tanh {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T v) const {
    return Activations::Tanh::Value(v);
  }
};
struct Sigmoid {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T v) const {
    return Activations::Sigmoid::Value(v);
  }
};
struct Erf {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T v) const {
    return std::erf(v);
  }
};
struct Relu {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T v) const {
    return Activations::Relu::Value(v);
  }
};

struct Neg {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T v) const {
    return -v;
  }
};
struct Abs {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T v) const {
    return std::fabs(v);
  }
};
struct Clamp {
  double low, high;
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T v) const {  // keeps a NaN
    const T above = v < static_cast<T>(low) ? static_cast<T>(low) : v;
    return above > static_cast<T>(high) ? static_cast<T>(high) : above;
  }
};
struct PowScalar {
  double exponent;
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T v) const {
    if (exponent == 2) return v * v;
    if (exponent == 3) return v * v * v;
    return std::pow(v, static_cast<T>(exponent));
  }
};
struct DivScalar {
  double divisor;
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T v) const {
    return v / static_cast<T>(divisor);
  }
};
struct ScalarDiv {
  double numerator;
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T v) const {
    return static_cast<T>(numerator) / v;
  }
};

// --- functions of two elements ---

struct Add {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T u, T v) const {
    return u + v;
  }
};
struct Sub {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T u, T v) const {
    return u - v;
  }
};
struct Mul {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T u, T v) const {
    return u * v;
  }
};
struct Div {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T u, T v) const {
    return u / v;
  }
};

struct Pow {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T u, T v) const {
    return std::pow(u, v);
  }
};
struct Maximum {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T u, T v) const {
    return u > v || u != u ? u : v;
  }
};
struct Minimum {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T u, T v) const {
    return u < v || u != u ? u : v;
  }
};
// 1 where both are the same, NaN included, else 0.
struct SameMask {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T u, T v) const {
    return u == v || (u != u && v != v) ? 1 : 0;
  }
};

// Derivatives of functions of two elements u and v, by which dy is multiplied. The larger of two
// gets the gradient, and equal ones get half each. A NaN counts as larger and as smaller.
struct LargerShare {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T u, T v) const {
    return u == v ? T(0.5) : u < v ? T(0) : T(1);
  }
};
struct SmallerShare {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T u, T v) const {
    return u == v ? T(0.5) : u > v ? T(0) : T(1);
  }
};
struct PowBaseDerivative {  // v u^(v - 1)
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T u, T v) const {
    return v == 0 ? T(0) : v * std::pow(u, v - 1);
  }
};
struct PowExponentDerivative {  // u^v ln u, and its limit 0 at u = 0
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T u, T v) const {
    return u == 0 && v >= 0 ? T(0) : std::pow(u, v) * std::log(u);
  }
};

// Gradients: dx from dy and either y = f(x) or x. The activations' derivatives can't stand in for
// them: they compute y again, round sigmoid's gradient differently and give relu's 0 at a NaN.
struct SqrtGrad {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T dy, T y) const {
    return dy / (2 * y);
  }
};
struct TanhGrad {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T dy, T y) const {
    return dy * (1 - y * y);
  }
};
struct SigmoidGrad {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T dy, T y) const {
    return dy * y * (1 - y);
  }
};
struct ErfGrad {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T dy, T x) const {
    return dy * 2 * std::numbers::inv_sqrtpi_v<T> * std::exp(-x * x);
  }
};
struct ReluGrad {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T dy, T x) const {
    return x <= 0 ? 0 : dy;
  }
};
struct AbsGrad {
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T dy, T x) const {
    return x > 0 ? dy : x < 0 ? -dy : 0;
  }
};
struct ClampGrad {
  double low, high;
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T dy, T x) const {
    return x > static_cast<T>(low) && x < static_cast<T>(high) ? dy : 0;
  }
};
struct PowScalarGrad {
  double exponent;
  template <typename T>
  [[gnu::always_inline]] constexpr T operator()(T dy, T x) const {
    if (exponent == 0) return 0;
    if (exponent == 2) return dy * 2 * x;
    if (exponent == 3) return dy * 3 * (x * x);
    return dy * static_cast<T>(exponent) * std::pow(x, static_cast<T>(exponent - 1));
  }
};

template <typename...>
struct List {};
using UnaryFunctions = List<Scale, AddScalar, Exp, Log, Sqrt, Tanh, Sigmoid, Erf, Relu, Neg, Abs,
                            Clamp, PowScalar, DivScalar, ScalarDiv>;
using BinaryFunctions =
    List<Add, Sub, Mul, Div, Pow, Maximum, Minimum, SameMask, LargerShare, SmallerShare,
         PowBaseDerivative, PowExponentDerivative, SqrtGrad, TanhGrad, SigmoidGrad, ErfGrad,
         ReluGrad, AbsGrad, ClampGrad, PowScalarGrad>;

}  // namespace lathe::functions
