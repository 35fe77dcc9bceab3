// CheckOp: a whole test of a differentiable op in one statement.
//
//   TEST(LayerNorm, Op) {
//     CheckOp({.name = "layer_norm",
//              .op = [](const Tensors& x) { return LayerNorm(x[0], x[1], x[2], 1e-5); },
//              .composed = [](const Tensors& x) { return LayerNormComposed(x[0], x[1], x[2], 1e-5);
//              }, .shapes = {{{3, 8}, {8}, {8}}, {{0, 8}, {8}, {8}}}});
//   }
//
// For each set of input shapes it checks that
//   - float32 agrees with float64, and the op with its composed formula: values and gradients;
//   - every gradient agrees with central differences in float64, for a random cotangent;
//   - gradients add up over two passes, are the same for a leaf as for a computed input, and are
//     the same if only one input needs one;
//   - magnitudes of 1e4 and 1e-30, and -0.0, give finite values and gradients wherever the float64
//     reference is finite (and fits in float32);
//   - NaN in gives NaN out, at the same places as in the composed formula;
//   - the inputs are left as they were;
//   - values and gradients are right in bfloat16, too, if the case names its activations.
// If a test links :check_op_on_device instead of :check_op, the op runs on cuda:0. It runs in
// float32 and, with activations named, in bfloat16 and float16. It is compared with the host's
// float64.
// Without a device the test is skipped. `op` must move what it captures to its inputs' device:
// `ids.To(x[0].device())`. The inputs are drawn from Philox under the case's name, so a failure
// repeats itself.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lathe/core/base/gemm_options.h"
#include "lathe/core/tensor.h"

namespace lathe {

using Tensors = std::vector<Tensor>;

struct OpCase {
  std::string name = "";
  std::function<Tensor(const Tensors&)> op = nullptr;
  // The same function made of plain ops. If there is none, the op in float64 is the reference.
  std::function<Tensor(const Tensors&)> composed = nullptr;
  std::vector<std::vector<Shape>> shapes = {};  // one list of input shapes for each run
  // The range of the inputs. If low >= 0, the extreme inputs are not negative, either.
  double low = -2, high = 2;
  std::vector<bool> needs_grad = {};  // for each input; empty: all
  // The largest error of float32, relative to 1 + the largest element.
  double tolerance = 1e-5;
  double grad_tolerance = 1e-4;
  // The largest error of float64 against central differences, relative in the same way.
  double difference_tolerance = 1e-6;
  bool float64 = true;    // false: the op has no float64 kernel; the composed formula stands in
  bool extremes = true;   // false: the op is not meant for extreme magnitudes
  bool nan_check = true;  // false: NaN may disappear
  // Inputs that are activations. The op is also run with these in bfloat16 and the others in
  // float32.
  std::vector<size_t> activations = {};
  // The largest error in a narrow dtype, against the reference on the same rounded inputs.
  double bfloat16_tolerance = 0.02;
  double float16_tolerance = 0.003;
};

void CheckOp(const OpCase& op_case);

// Returns the device on which CheckOp runs ops. One of two small libraries defines this function.
Device CheckedDevice();
// Returns why that device can't be used; empty if it can.
std::string WhyNoCheckedDevice();
// Returns true if that device is not the host and can be used. Tests that need one are skipped
// otherwise.
bool HasCheckedDevice();
// Returns true if that device is the emulated one, on which everything is slow.
bool IsCheckedDeviceEmulated();

// While it lives, products on devices repeat bit for bit.
class DeterministicGemms {
 public:
  DeterministicGemms() { UseDeterministicGemms(true); }
  ~DeterministicGemms() { SetGemmOptions(before_); }
  DeterministicGemms(const DeterministicGemms&) = delete;
  DeterministicGemms& operator=(const DeterministicGemms&) = delete;

 private:
  const GemmOptions before_ = GetGemmOptions();
};

// Expects equal sizes and elements. On a GPU elements may differ by four roundings to `dtype` of 1
// + the expected element. Two kernels of one formula can differ by that much: the compiler
// contracts a product and a sum in one and not in the other.
void ExpectSameButForRounding(std::span<const float> actual, std::span<const float> expected,
                              DType dtype);

}  // namespace lathe
