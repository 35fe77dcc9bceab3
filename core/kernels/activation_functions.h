// Activation functions and their derivatives, written once for the host and for devices. The
// formulas are those of Transformers' ACT2FN.
//
// Each has
//   Value(x), the function's value;
//   Derivative(x), its derivative.
// `Math` supplies Exp, Erf, kGeluNewSlope, which is 3 kGeluNewCubic, and Tanh for GeluNew. The
// function Tanh is the standard library's with any Math. Each kernel source passes its own type. On
// the host, kernels are compiled for several instruction set levels, and code for one level must
// not be linked into another. So the type must be in an unnamed namespace there.
#pragma once

#include <cmath>

namespace lathe {

enum class ActivationKind {
  kNone,
  kGelu,
  kGeluNew,
  kRelu,
  kTanh,
  kSilu,
  kGelu10,
  kQuickGelu,
  kMish,
  kRelu2,
  kRelu6,
  kLeakyRelu,
  kSigmoid
};

// The factor of x^3 in gelu_new.
inline constexpr double kGeluNewCubic = 0.044715;

template <typename Math>
struct ActivationFunctions {
  struct Identity {  // x, what kNone means
    template <typename T>
    [[gnu::always_inline]] static constexpr T Value(T x) {
      return x;
    }
    template <typename T>
    [[gnu::always_inline]] static constexpr T Derivative(T) {
      return T(1);
    }
  };
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
      const T u = T(0.79788456080286536) * (x + T(kGeluNewCubic) * x * x * x);
      return T(0.5) * x * (T(1) + Math::Tanh(u));
    }
    template <typename T>
    [[gnu::always_inline]] static constexpr T Derivative(T x) {
      const T u = T(0.79788456080286536) * (x + T(kGeluNewCubic) * x * x * x);
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
  struct Gelu10 {  // min(Gelu, 10); Gelu is never below -1
    static constexpr float kMost = 10;
    template <typename T>
    [[gnu::always_inline]] static constexpr T Value(T x) {
      return x > T(kMost) ? T(kMost) : Gelu::Value(x);
    }
    template <typename T>
    [[gnu::always_inline]] static constexpr T Derivative(T x) {
      return x >= T(kMost) ? T(0) : Gelu::Derivative(x);
    }
  };
  struct QuickGelu {  // x * sigmoid(1.702 x)
    template <typename T>
    [[gnu::always_inline]] static constexpr T Value(T x) {
      return x / (T(1) + Math::Exp(T(-1.702) * x));
    }
    template <typename T>
    [[gnu::always_inline]] static constexpr T Derivative(T x) {
      const T s = T(1) / (T(1) + Math::Exp(T(-1.702) * x));
      return s * (T(1) + T(1.702) * x * (T(1) - s));
    }
  };
  struct Mish {  // x * t, t = tanh(ln(1 + e^x)) = n / (n + 2), n = e^x (e^x + 2)
    template <typename T>
    [[gnu::always_inline]] static constexpr T Value(T x) {
      const T n = N(E(x));
      return x * (n / (n + T(2)));
    }
    template <typename T>
    [[gnu::always_inline]] static constexpr T Derivative(T x) {
      const T e = E(x), n = N(e);
      const T t = n / (n + T(2));
      return t + x * (T(1) - t * t) * (e / (T(1) + e));
    }

   private:
    // Returns e^x, but no number whose square overflows. From 20 on, t is 1 in any case.
    template <typename T>
    [[gnu::always_inline]] static constexpr T E(T x) {
      return Math::Exp(x > T(20) ? T(20) : x);
    }
    template <typename T>
    [[gnu::always_inline]] static constexpr T N(T e) {
      return e * (e + T(2));
    }
  };
  struct Relu2 {  // Relu^2
    template <typename T>
    [[gnu::always_inline]] static constexpr T Value(T x) {
      return x < 0 ? T(0) : x * x;
    }
    template <typename T>
    [[gnu::always_inline]] static constexpr T Derivative(T x) {
      return x < 0 ? T(0) : T(2) * x;
    }
  };
  struct Relu6 {  // min(Relu, 6)
    template <typename T>
    [[gnu::always_inline]] static constexpr T Value(T x) {
      return x < 0 ? T(0) : x > 6 ? T(6) : x;
    }
    template <typename T>
    [[gnu::always_inline]] static constexpr T Derivative(T x) {
      return x > 0 && x < 6 ? T(1) : T(0);
    }
  };
  struct LeakyRelu {  // PyTorch's slope below 0
    template <typename T>
    [[gnu::always_inline]] static constexpr T Value(T x) {
      return x > 0 ? x : T(0.01) * x;
    }
    template <typename T>
    [[gnu::always_inline]] static constexpr T Derivative(T x) {
      return x > 0 ? T(1) : T(0.01);
    }
  };
  struct Sigmoid {
    template <typename T>
    [[gnu::always_inline]] static constexpr T Value(T x) {
      return T(1) / (T(1) + Math::Exp(-x));
    }
    template <typename T>
    [[gnu::always_inline]] static constexpr T Derivative(T x) {
      const T s = T(1) / (T(1) + Math::Exp(-x));
      return s * (T(1) - s);
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
      case ActivationKind::kGelu10:
        return body(Gelu10{});
      case ActivationKind::kQuickGelu:
        return body(QuickGelu{});
      case ActivationKind::kMish:
        return body(Mish{});
      case ActivationKind::kRelu2:
        return body(Relu2{});
      case ActivationKind::kRelu6:
        return body(Relu6{});
      case ActivationKind::kLeakyRelu:
        return body(LeakyRelu{});
      case ActivationKind::kSigmoid:
        return body(Sigmoid{});
    }
  }
};

}  // namespace lathe
