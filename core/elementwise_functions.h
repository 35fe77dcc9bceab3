// The functions that the elementwise ops apply to each element. The host maps them over float or
// double. Devices map them over float32, bfloat16 and float16 and compute in float.
//
// A new op adds its function here and to the lists at the end, which device kernels are built from.
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
  constexpr T operator()(T v) const {
    return v * static_cast<T>(factor);
  }
};
struct AddScalar {
  double value;
  template <typename T>
  constexpr T operator()(T v) const {
    return v + static_cast<T>(value);
  }
};
struct Exp {
  template <typename T>
  constexpr T operator()(T v) const {
    return std::exp(v);
  }
};
struct Log {
  template <typename T>
  constexpr T operator()(T v) const {
    return std::log(v);
  }
};
struct Sqrt {
  template <typename T>
  constexpr T operator()(T v) const {
    return std::sqrt(v);
  }
};
struct Tanh {
  template <typename T>
  constexpr T operator()(T v) const {
    return Activations::Tanh::Value(v);
  }
};
struct Sigmoid {
  template <typename T>
  constexpr T operator()(T v) const {
    return Activations::Sigmoid::Value(v);
  }
};
struct Erf {
  template <typename T>
  constexpr T operator()(T v) const {
    return std::erf(v);
  }
};
struct Relu {
  template <typename T>
  constexpr T operator()(T v) const {
    return Activations::Relu::Value(v);
  }
};

// --- functions of two elements ---

struct Add {
  template <typename T>
  constexpr T operator()(T u, T v) const {
    return u + v;
  }
};
struct Sub {
  template <typename T>
  constexpr T operator()(T u, T v) const {
    return u - v;
  }
};
struct Mul {
  template <typename T>
  constexpr T operator()(T u, T v) const {
    return u * v;
  }
};
struct Div {
  template <typename T>
  constexpr T operator()(T u, T v) const {
    return u / v;
  }
};

// Gradients: dx from dy and either y = f(x) or x. The activations' derivatives can't stand in for
// them: they compute y again, round sigmoid's gradient differently and give relu's 0 at a NaN.
struct SqrtGrad {
  template <typename T>
  constexpr T operator()(T dy, T y) const {
    return dy / (2 * y);
  }
};
struct TanhGrad {
  template <typename T>
  constexpr T operator()(T dy, T y) const {
    return dy * (1 - y * y);
  }
};
struct SigmoidGrad {
  template <typename T>
  constexpr T operator()(T dy, T y) const {
    return dy * y * (1 - y);
  }
};
struct ErfGrad {
  template <typename T>
  constexpr T operator()(T dy, T x) const {
    return dy * 2 * std::numbers::inv_sqrtpi_v<T> * std::exp(-x * x);
  }
};
struct ReluGrad {
  template <typename T>
  constexpr T operator()(T dy, T x) const {
    return x <= 0 ? 0 : dy;
  }
};

template <typename...>
struct List {};
using UnaryFunctions = List<Scale, AddScalar, Exp, Log, Sqrt, Tanh, Sigmoid, Erf, Relu>;
using BinaryFunctions =
    List<Add, Sub, Mul, Div, SqrtGrad, TanhGrad, SigmoidGrad, ErfGrad, ReluGrad>;

}  // namespace lathe::functions
