// Activation functions and their derivatives, written once for the host and for devices. The
// formulas are those of Transformers' ACT2FN.
//
// Each has
//   Value(x), the function's value;
//   Derivative(x), its derivative.
// `Math` supplies Exp, Erf, Tanh and kGeluNewSlope. Each kernel source passes its own type. On the
// host, kernels are compiled for several instruction set levels, and code for one level must not be
// linked into another. So the type must be in an unnamed namespace there.
#pragma once

#include <cmath>

namespace lathe {

enum class ActivationKind { kNone, kGelu, kGeluNew, kRelu, kTanh, kSilu };

template <typename Math>
struct ActivationFunctions {
  struct Gelu {  // x/2 (1 + erf(x / sqrt 2))
    template <typename T>
    [[gnu::always_inline]] static constexpr T Value(T x) {
      return T(0.5) * x * (T(1) + Math::Erf(x * T(0.70710678118654752)));
    }
    template <typename T>
    [[gnu::always_inline]] static constexpr T Derivative(T x) {
      return T(0.5) * (T(1) + Math::Erf(x * T(0.70710678118654752))) +
             x * T(0.39894228040143268) * Math::Exp(T(-0.5) * x * x);
    }
  };
  struct GeluNew {  // x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3)
    template <typename T>
    [[gnu::always_inline]] static constexpr T Value(T x) {
      const T u = T(0.79788456080286536) * (x + T(0.044715) * x * x * x);
      return T(0.5) * x * (T(1) + Math::Tanh(u));
    }
    template <typename T>
    [[gnu::always_inline]] static constexpr T Derivative(T x) {
      const T u = T(0.79788456080286536) * (x + T(0.044715) * x * x * x);
      const T t = Math::Tanh(u);
      return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * T(0.79788456080286536) *
                                       (T(1) + Math::template kGeluNewSlope<T> * x * x);
    }
  };
  struct Relu {
    template <typename T>
    [[gnu::always_inline]] static constexpr T Value(T x) {
      return x < 0 ? T(0) : x;  // NaN stays NaN
    }
    template <typename T>
    [[gnu::always_inline]] static constexpr T Derivative(T x) {
      return x > 0 ? T(1) : T(0);
    }
  };
  struct Tanh {
    template <typename T>
    [[gnu::always_inline]] static constexpr T Value(T x) {
      return std::tanh(x);
    }
    template <typename T>
    [[gnu::always_inline]] static constexpr T Derivative(T x) {
      const T t = std::tanh(x);
      return T(1) - t * t;
    }
  };
  struct Silu {  // x * sigmoid(x)
    template <typename T>
    [[gnu::always_inline]] static constexpr T Value(T x) {
      return x / (T(1) + Math::Exp(-x));
    }
    template <typename T>
    [[gnu::always_inline]] static constexpr T Derivative(T x) {
      const T s = T(1) / (T(1) + Math::Exp(-x));
      return s * (T(1) + x * (T(1) - s));
    }
  };

  // Calls body(f) with an object of the function's type; does nothing for kNone.
  template <typename Body>
  static void With(ActivationKind kind, Body body) {
    switch (kind) {
      case ActivationKind::kNone:
        return;
      case ActivationKind::kGelu:
        return body(Gelu{});
      case ActivationKind::kGeluNew:
        return body(GeluNew{});
      case ActivationKind::kRelu:
        return body(Relu{});
      case ActivationKind::kTanh:
        return body(Tanh{});
      case ActivationKind::kSilu:
        return body(Silu{});
    }
  }
};

}  // namespace lathe
