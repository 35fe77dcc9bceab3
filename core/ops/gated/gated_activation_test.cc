#include "lathe/core/ops/gated/gated_activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

constexpr const char* kNames[] = {"gelu",  "gelu_new", "gelu_10",    "quick_gelu", "relu",
                                  "relu2", "relu6",    "leaky_relu", "mish",       "sigmoid",
                                  "tanh",  "silu",     "linear"};

// Rows of fewer columns than a register, of whole ones, and of a rest.
TEST(GatedActivation, Op) {
  for (const char* name : kNames) {
    for (const GateHalves halves : {GateHalves::kColumns, GateHalves::kRows}) {
      const bool columns = halves == GateHalves::kColumns;
      const auto shape = [&](int64_t n, int64_t width) {
        return std::vector<Shape>{columns ? Shape({n, 2 * width}) : Shape({2 * n, width})};
      };
      CheckOp({.name = std::string("gated_") + name + (columns ? "_columns" : "_rows"),
               .op = [=, kind = ParseActivation(name)](
                         const Tensors& x) { return GatedActivation(x[0], kind, halves); },
               .composed =
                   [=, kind = ParseActivation(name)](const Tensors& x) {
                     return GatedActivationComposed(x[0], kind, halves);
                   },
               .shapes = {shape(1, 1), shape(3, 7), shape(2, 64), shape(3, 51), shape(0, 3),
                          shape(2, 0)},
               .activations = {0}});
    }
  }
}

// Beyond the places at which a formula changes.
TEST(GatedActivation, FarFromZero) {
  for (const char* name : kNames) {
    CheckOp(
        {.name = std::string("gated_far_") + name,
         .op = [kind = ParseActivation(name)](
                   const Tensors& x) { return GatedActivation(x[0], kind, GateHalves::kColumns); },
         .composed =
             [kind = ParseActivation(name)](const Tensors& x) {
               return GatedActivationComposed(x[0], kind, GateHalves::kColumns);
             },
         .shapes = {{{5, 222}}},
         .low = -14,
         .high = 14,
         .activations = {0}});
  }
}

TEST(GatedActivation, Values) {
  const std::vector<float> numbers = {-1, 2, 3, 4, 5, 6, -7, 8};
  const auto run = [&](Shape shape, GateHalves halves, std::vector<float>* gradient) {
    const Tensor x = Tensor::FromVector(numbers, std::move(shape)).SetRequiresGrad(true);
    const Tensor y = GatedActivation(x, ActivationKind::kRelu, halves);
    EXPECT_EQ(y.shape(), Shape({2, 2}));
    Backward(y, Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2}));
    *gradient = x.grad().ToVector<float>();
    return y.ToVector<float>();
  };
  std::vector<float> gradient;
  EXPECT_EQ(run({2, 4}, GateHalves::kColumns, &gradient), (std::vector<float>{0, 8, -35, 48}));
  EXPECT_EQ(gradient, (std::vector<float>{0, 8, 0, 4, -21, 32, 15, 24}));
  EXPECT_EQ(run({4, 2}, GateHalves::kRows, &gradient), (std::vector<float>{0, 12, -21, 32}));
  EXPECT_EQ(gradient, (std::vector<float>{0, 12, -21, 32, 0, 4, 9, 16}));
}

// Results are the same at addresses that don't allow loads of 16 bytes.
TEST(GatedActivation, UnalignedOnDevices) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device";
  std::vector<float> numbers(4 * 32 + 1);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = 3 * std::sin(static_cast<float>(i));
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Tensor all = Tensor::FromVector(numbers).To(dtype).To(CheckedDevice());
    for (const GateHalves halves : {GateHalves::kColumns, GateHalves::kRows}) {
      const auto run = [&](Tensor x) {
        x.SetRequiresGrad(true);
        const Tensor y = GatedActivation(x, ActivationKind::kSilu, halves);
        Backward(y, Tensor::Full(y.shape(), 2, dtype, y.device()));
        return std::pair(y.Detach().To(DType::kF32).ToVector<float>(),
                         x.grad().To(DType::kF32).ToVector<float>());
      };
      const Tensor slice = all.Slice(1, 4 * 32 + 1).Reshape({4, 32});
      const auto unaligned = run(slice.Detach()), aligned = run(slice.Clone());
      ExpectSameButForRounding(unaligned.first, aligned.first, dtype);
      ExpectSameButForRounding(unaligned.second, aligned.second, dtype);
    }
  }
}

TEST(GatedActivation, Errors) {
  const auto error = [](Shape shape, GateHalves halves) {
    try {
      GatedActivation(Tensor::Zeros(std::move(shape)), ActivationKind::kGelu, halves);
    } catch (const Error& e) {
      return std::string(e.message());
    }
    return std::string();
  };
  EXPECT_EQ(error({3, 4}, GateHalves::kColumns), "");
  EXPECT_EQ(error({4}, GateHalves::kColumns),
            "[gated_activation] expected shape [N, 2 I] but got [4]");
  EXPECT_EQ(error({3, 5}, GateHalves::kColumns),
            "[gated_activation] expected an even number of columns but got shape [3, 5]");
  EXPECT_EQ(error({3, 4}, GateHalves::kRows),
            "[gated_activation] expected an even number of rows but got shape [3, 4]");
}

}  // namespace
}  // namespace lathe
