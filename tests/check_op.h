// CheckOp: a whole test of a differentiable op in one statement.
//
//   TEST(LayerNorm, Op) {
//     CheckOp({.name = "layer_norm",
//              .op = [](const Tensors& x) { return LayerNorm(x[0], x[1], x[2], 1e-5); },
//              .composed = [](const Tensors& x) { return LayerNormComposed(x[0], x[1], x[2], 1e-5);
//              }, .shapes = {{{3, 8}, {8}, {8}}, {{0, 8}, {8}, {8}}}});
//   }
//
// For each set of input shapes it checks
//   - float32 against float64, and the op against its composed formula: values and gradients;
//   - every gradient against central differences in float64, with a random cotangent;
//   - that gradients add up over two passes, are the same for a leaf as for a computed input, and
//     are the same when only one input needs one;
//   - magnitudes of 1e4 and 1e-30, and -0.0: values and gradients are finite wherever the reference
//     in float64 is (and fits in float32);
//   - NaN in, NaN out, and at the same places as in the composed formula;
//   - that the inputs are left as they were;
//   - where the case names its activations, all of the values and gradients in bfloat16.
// Where a test links :check_op_on_device instead, the op runs on cuda:0, in float32 and,
// with activations named, in bfloat16 and float16, and is compared with the host's float64; without
// a device the test is skipped. What `op` captures has to follow: `ids.To(x[0].device())`. The
// inputs are drawn from Philox under the case's name, so a failure repeats itself.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lathe/core/gemm_options.h"
#include "lathe/core/tensor.h"

namespace lathe {

using Tensors = std::vector<Tensor>;

struct OpCase {
  std::string name = "";
  std::function<Tensor(const Tensors&)> op = nullptr;
  // The same function from plain ops; where there is none, the op in float64 is the reference.
  std::function<Tensor(const Tensors&)> composed = nullptr;
  std::vector<std::vector<Shape>> shapes = {};  // one list of input shapes for each run
  double low = -2, high = 2;                    // the inputs' range; positive ones stay positive
  std::vector<bool> needs_grad = {};            // for each input; empty: all
  // Largest error of float32, relative to 1 + the largest element.
  double tolerance = 1e-5;
  double grad_tolerance = 1e-4;
  // Largest error of float64 against central differences, relative in the same way.
  double difference_tolerance = 1e-6;
  bool float64 = true;    // false: the op has no float64 kernel; the composed formula stands in
  bool extremes = true;   // false: the op is not meant for them
  bool nan_check = true;  // false: NaN may disappear
  // Inputs that are activations: the op is also run with these in bfloat16, the others in float32.
  std::vector<size_t> activations = {};
  bool narrow_on_host = true;  // false: only devices have kernels for them
  // Largest error then, against the reference on the same rounded inputs.
  double bfloat16_tolerance = 0.02;
  double float16_tolerance = 0.003;
};

void CheckOp(const OpCase& op_case);

// Where CheckOp runs ops: one of two small libraries says so.
Device CheckedDevice();
// Why that device isn't there; empty if it is.
std::string WhyNoCheckedDevice();
// Whether that is another than the host, and there: tests that need one are skipped otherwise.
bool HasCheckedDevice();

// While it lives, products on devices repeat themselves bit for bit.
class DeterministicGemms {
 public:
  DeterministicGemms() { UseDeterministicGemms(true); }
  ~DeterministicGemms() { SetGemmOptions(before_); }
  DeterministicGemms(const DeterministicGemms&) = delete;
  DeterministicGemms& operator=(const DeterministicGemms&) = delete;

 private:
  const GemmOptions before_ = GetGemmOptions();
};

// Expects equal sizes and elements; on a GPU elements that differ by no more than four roundings to
// `dtype` of 1 + the expected one: what two kernels of one formula may differ by, as its compiler
// contracts a product and a sum in one and not in the other.
void ExpectSameButForRounding(std::span<const float> actual, std::span<const float> expected,
                              DType dtype);

}  // namespace lathe
