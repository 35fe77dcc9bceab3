// Values of the elementwise ops on the host: ties, numbers of every magnitude, broadcasting.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/broadcast.h"
#include "lathe/core/ops/elementwise.h"

namespace lathe {
namespace {

// Where both elements are equal each gets half of the gradient. Elsewhere, and for a NaN, PyTorch's
// rules hold as well.
TEST(Elementwise, Ties) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto gradients = [](auto op, const std::vector<float>& a, const std::vector<float>& b) {
    Tensor x = Tensor::FromVector(a).SetRequiresGrad(true);
    Tensor y = Tensor::FromVector(b).SetRequiresGrad(true);
    Backward(op(x, y), Tensor::Full({x.dim(0)}, 2));
    return std::pair(x.grad().ToVector<float>(), y.grad().ToVector<float>());
  };
  using Pair = std::pair<std::vector<float>, std::vector<float>>;
  EXPECT_EQ(gradients(Maximum, {1, 2, 3, nan}, {1, 3, 2, 0}), Pair({1, 0, 2, 2}, {1, 2, 0, 2}));
  EXPECT_EQ(gradients(Minimum, {1, 2, 3, nan}, {1, 3, 2, 0}), Pair({1, 2, 0, 2}, {1, 0, 2, 2}));
  EXPECT_EQ(gradients(
                [](const Tensor& x, const Tensor& y) {
                  return Add(Clamp(x, {-1, 1}), Abs(y));
                },
                {-1, 1, 1.5, nan}, {0, 1, -1, 2}),
            Pair({0, 0, 0, 0}, {0, 2, -2, 2}));
  EXPECT_EQ(gradients([](const Tensor& x, const Tensor& y) { return Pow(x, y); }, {0, 0, 2, 1},
                      {0, 2, 0, 3}),
            Pair({0, 0, 0, 6}, {0, 0, 2 * std::log(2.0f), 0}));
}

TEST(Elementwise, NewValues) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = Tensor::FromVector<float>({-2, 0, 3, nan});
  const auto same = [](const Tensor& y, const std::vector<float>& expected) {
    const std::vector<float> values = y.ToVector<float>();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(values[i] == expected[i] || (std::isnan(values[i]) && std::isnan(expected[i])))
          << i << ": " << values[i] << ", expected " << expected[i];
    }
  };
  same(Abs(x), {2, 0, 3, nan});
  same(Clamp(x, {.max = 1}), {-2, 0, 1, nan});
  same(Clamp(x, {.min = 5, .max = 1}), {1, 1, 1, nan});
  same(Pow(x, 3), {-8, 0, 27, nan});
  same(Pow(x, 0), {1, 1, 1, 1});
  same(Maximum(x, Tensor::FromVector<float>({1, nan, 1, 1})), {1, nan, 3, nan});
  same(Minimum(x, Tensor::FromVector<float>({1, nan, 1, 1})), {-2, nan, 1, nan});
  same(SameMask(x, Tensor::FromVector<float>({-2, 1, 3, nan})), {1, 0, 1, 1});
}

TEST(Elementwise, BroadcastValues) {
  const Tensor column = Tensor::FromVector<float>({10, 20}, {2, 1});
  const Tensor row = Tensor::FromVector<float>({1, 2, 3});
  EXPECT_EQ(Add(column, row).ToVector<float>(), (std::vector<float>{11, 12, 13, 21, 22, 23}));
  EXPECT_EQ(Sub(row, column).ToVector<float>(), (std::vector<float>{-9, -8, -7, -19, -18, -17}));
}

TEST(Elementwise, UnaryValues) {
  EXPECT_EQ(Sigmoid(Tensor::FromVector<float>({-1e4f, 0, 1e4f})).ToVector<float>(),
            (std::vector<float>{0, 0.5, 1}));
  EXPECT_EQ(Relu(Tensor::FromVector<float>({-1, 0, 2})).ToVector<float>(),
            (std::vector<float>{0, 0, 2}));
  EXPECT_TRUE(std::isnan(Log(Tensor::FromVector<float>({-1})).Item()));
}

// All of float32 that matters to a function: both signs of each magnitude, and what is no number.
// The numbers around the places are there, too, where results become infinite, subnormal or 1.
std::vector<float> ManyFloats() {
  std::vector<float> values = {0, std::numeric_limits<float>::infinity(), 1e-45f};
  for (float x = 1e-38f; x < 3e38f; x *= 1.0037f) values.push_back(x);
  for (float x = 0; x < 110; x += 0.00731f) values.push_back(x);
  const size_t count = values.size();
  for (size_t i = 0; i < count; ++i) values.push_back(-values[i]);
  values.push_back(std::numeric_limits<float>::quiet_NaN());
  return values;
}

// The kernels' own formulas beside the standard library's in double.
TEST(Elementwise, FunctionsOfManyFloats) {
  struct Case {
    const char* name;
    Tensor (*op)(const Tensor&);
    double (*exact)(double);
    double tolerance;  // relative
    double near_zero;  // the absolute error of subnormal results
  };
  const double few_units = 5e-45;
  const Case cases[] = {
      {"exp", Exp, std::exp, 3e-7, few_units},
      {"tanh", Tanh, std::tanh, 4e-7, few_units},
      // e^-x overflows where the result is subnormal, which is 0 then.
      {"sigmoid", Sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, 4e-7, 1.2e-38},
      {"erf", Erf, std::erf, 4e-7, few_units},
      {"log", Log, std::log, 1.5e-7, few_units},
  };
  const std::vector<float> x = ManyFloats();
  for (const Case& c : cases) {
    const std::vector<float> y = c.op(Tensor::FromVector(x)).ToVector<float>();
    for (size_t i = 0; i < x.size(); ++i) {
      const float exact = static_cast<float>(c.exact(double{x[i]}));
      SCOPED_TRACE(std::string(c.name) + " of " + std::to_string(x[i]));
      if (std::isnan(exact)) {
        ASSERT_TRUE(std::isnan(y[i]));
      } else if (std::isinf(exact) || std::isinf(y[i])) {
        // A result next to infinity may be rounded to it.
        ASSERT_TRUE(y[i] == exact || (y[i] > 3.4028e38f && exact > 3.4028e38f));
      } else {
        ASSERT_NEAR(y[i], exact, std::max(c.tolerance * std::fabs(exact), c.near_zero));
      }
    }
  }
}

// Expects the float next to base^exponent, or the neighbour of that. Zeros have the same sign.
void ExpectPower(float y, float base, float exponent) {
  const auto exact = static_cast<float>(std::pow(double{base}, double{exponent}));
  SCOPED_TRACE(std::to_string(base) + "^" + std::to_string(exponent));
  if (std::isnan(exact)) {
    ASSERT_TRUE(std::isnan(y)) << y;
  } else {
    ASSERT_EQ(std::signbit(y), std::signbit(exact));
    ASSERT_TRUE(y == exact || std::nextafter(y, exact) == exact) << y << ", expected " << exact;
  }
}

TEST(Elementwise, PowersOfManyFloats) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = ManyFloats();
  for (const float exponent :
       {0.5f, -1.0f, 4.0f, -3.0f, 0.1f, 1.0f, 0.0f, -7.25f, infinity, -infinity, nan}) {
    const std::vector<float> y = Pow(Tensor::FromVector(x), exponent).ToVector<float>();
    for (size_t i = 0; i < x.size(); ++i) ExpectPower(y[i], x[i], exponent);
  }
  std::vector<float> specials = {0,   1,     2,      0.5f,     3,        1.5f,     1e-45f,
                                 nan, 3e38f, 1e-38f, infinity, 16777216, 16777215, 8388609};
  for (size_t i = specials.size(); i-- > 0;) specials.push_back(-specials[i]);
  const auto n = static_cast<int64_t>(specials.size());
  const std::vector<float> powers =
      Pow(Tensor::FromVector(specials, {n, 1}), Tensor::FromVector(specials)).ToVector<float>();
  for (size_t i = 0; i < powers.size(); ++i)
    ExpectPower(powers[i], specials[i / specials.size()], specials[i % specials.size()]);
}

// Expects the product of the numbers, of which float32 holds each as the library gives it.
void ExpectProduct(float got, double dy, double factor, float power) {
  const auto exact = static_cast<float>(dy * factor * double{power});
  if (std::isnan(exact)) {
    ASSERT_TRUE(std::isnan(got)) << got;
  } else if (std::isinf(exact)) {
    ASSERT_EQ(got, exact);
  } else {
    // Numbers below 2^-126 have few digits, in the power as in the product.
    const double lost = std::abs(dy * factor) * 1.5e-45 + 1.5e-45;
    ASSERT_NEAR(got, exact, 2.5e-7 * std::abs(exact) + lost);
  }
}

TEST(Elementwise, GradientsOfSpecialPowersAreTheLibrarys) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> specials = {0,      1,      2,         0.5f,  3,      1.5f,
                                 1e-45f, 1e-20f, kInfinity, 3e38f, 1e-38f, 16777216};
  for (size_t i = specials.size(); i-- > 0;) specials.push_back(-specials[i]);
  specials.push_back(std::numeric_limits<float>::quiet_NaN());
  const auto n = static_cast<int64_t>(specials.size());
  for (const float dy : {1.0f, 0.0f, -2.0f, 1e-30f, 1e30f, kInfinity}) {
    for (const float p : specials) {
      if (p == 0) continue;  // the gradient is 0
      Tensor x = Tensor::FromVector(specials).SetRequiresGrad(true);
      Backward(Pow(x, p), Tensor::Full({n}, dy));
      const std::vector<float> grads = x.grad().ToVector<float>();
      for (size_t i = 0; i < grads.size(); ++i) {
        SCOPED_TRACE(std::to_string(dy) + ", " + std::to_string(specials[i]) + "^" +
                     std::to_string(p));
        const auto power = static_cast<float>(std::pow(double{specials[i]}, double{p - 1}));
        ExpectProduct(grads[i], dy, p, power);
      }
    }
    // Erf: dx = dy 2 / sqrt(pi) e^(-x^2)
    Tensor x = Tensor::FromVector(specials).SetRequiresGrad(true);
    Backward(Erf(x), Tensor::Full({n}, dy));
    const std::vector<float> grads = x.grad().ToVector<float>();
    for (size_t i = 0; i < grads.size(); ++i) {
      const auto power = static_cast<float>(std::exp(-double{specials[i]} * specials[i]));
      ExpectProduct(grads[i], dy, 1.1283791670955126, power);
    }
  }
  // With an exponent for each element the derivatives are rounded before dy is multiplied.
  std::vector<float> bases, exponents;
  for (const float base : specials) {
    bases.insert(bases.end(), specials.size(), base);
    exponents.insert(exponents.end(), specials.begin(), specials.end());
  }
  Tensor u = Tensor::FromVector(bases).SetRequiresGrad(true);
  Tensor v = Tensor::FromVector(exponents).SetRequiresGrad(true);
  Backward(Pow(u, v), Tensor::Full({n * n}, 1));
  const std::vector<float> of_base = u.grad().ToVector<float>();
  const std::vector<float> of_exponent = v.grad().ToVector<float>();
  for (size_t i = 0; i < of_base.size(); ++i) {
    const double base = bases[i], p = exponents[i];
    SCOPED_TRACE(std::to_string(base) + "^" + std::to_string(p));
    if (p != 0) ExpectProduct(of_base[i], 1, p, static_cast<float>(std::pow(base, p - 1)));
    if (base != 0 || !(p >= 0)) {
      ExpectProduct(of_exponent[i], 1, std::log(base), static_cast<float>(std::pow(base, p)));
    }
  }
}

// An exponent that float32 rounds to 0 is 0, except for the gradient at 0 as in PyTorch.
TEST(Elementwise, ExponentsThatRoundToZero) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Tensor x = Tensor::FromVector<float>({0, 1, -2, kInfinity, -kInfinity, 1e-45f, 3, 4, 5});
  x.SetRequiresGrad(true);
  const Tensor y = Pow(x, 1e-60);
  EXPECT_EQ(y.ToVector<float>(), std::vector<float>(9, 1));
  Backward(y, Tensor::Full({9}, 1));
  const std::vector<float> grads = x.grad().ToVector<float>();
  EXPECT_TRUE(std::isnan(grads[0]));
  for (const size_t i : {1, 2, 3, 4, 6, 7, 8}) EXPECT_EQ(grads[i], 0) << i;
}

// Operands that repeat in each way, with rows of few and of many elements.
TEST(Elementwise, BroadcastOfManyRows) {
  const std::vector<std::pair<Shape, Shape>> cases = {
      {{9001, 3}, {3}},       {{9001, 3}, {9001, 1}}, {{3}, {9001, 3}},
      {{9001, 1}, {9001, 3}}, {{1, 7}, {4000, 1}},    {{5, 1, 2000}, {5, 9, 1}},
      {{31, 1, 40}, {50, 1}}, {{2, 30, 400}, {}},     {{4, 1, 3, 1}, {1, 2000, 1, 5}}};
  for (const auto& [a_shape, b_shape] : cases) {
    SCOPED_TRACE(ToString(a_shape) + " and " + ToString(b_shape));
    const auto filled = [](const Shape& shape, size_t factor) {
      std::vector<float> values(static_cast<size_t>(NumElements(shape)));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(i * factor % 1009) - 500;
      return values;
    };
    const std::vector<float> a = filled(a_shape, 7), b = filled(b_shape, 11);
    const Tensor y = Sub(Tensor::FromVector(a, a_shape), Tensor::FromVector(b, b_shape));
    const Shape a_strides = BroadcastStrides(a_shape, y.shape());
    const Shape b_strides = BroadcastStrides(b_shape, y.shape());
    const std::vector<float> got = y.ToVector<float>();
    for (size_t i = 0; i < got.size(); ++i) {
      int64_t rest = static_cast<int64_t>(i), at_a = 0, at_b = 0;
      for (int d = y.ndim() - 1; d >= 0; --d) {
        at_a += rest % y.dim(d) * a_strides[d];
        at_b += rest % y.dim(d) * b_strides[d];
        rest /= y.dim(d);
      }
      ASSERT_EQ(got[i], a[at_a] - b[at_b]) << i;
    }
  }
}

TEST(Elementwise, PowersByProducts) {
  const std::vector<float> x = {-3, -0.5f, 0, 0.25f, 7};
  for (const double exponent : {2.0, 3.0, 4.0}) {
    Tensor leaf = Tensor::FromVector(x).SetRequiresGrad(true);
    const Tensor y = Pow(leaf, exponent);
    Backward(y, Tensor::Full({5}, 1));
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_FLOAT_EQ(y.ToVector<float>()[i], std::pow(x[i], static_cast<float>(exponent)));
      EXPECT_FLOAT_EQ(leaf.grad().ToVector<float>()[i],
                      static_cast<float>(exponent * std::pow(double{x[i]}, exponent - 1)));
    }
  }
}

}  // namespace
}  // namespace lathe
