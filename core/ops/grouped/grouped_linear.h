// Linear layers whose columns form groups: each group of outputs reads one group of inputs.
#pragma once

#include <vector>

#include "lathe/core/tensor.h"

namespace lathe {

// How a grouped layer's weight is stored.
enum class GroupedWeight {
  kOutIn,  // [G * out, in], or with further dimensions [G * out, in, 1], as Conv1d has it
  kInOut,  // [G, in, out]
};

// A layer of G groups. With x_g as columns [g in, (g + 1) in) of x, and W_g as group g's part of
// the weight, it computes
//
//   y_g = x_g W_g^T + b_g   (kOutIn)      y_g = x_g W_g + b_g   (kInOut)
struct GroupedLayer {
  Tensor weight;
  Tensor bias = {};  // G * out elements, in any shape; undefined: there is none
  int64_t groups = 1;
  GroupedWeight layout = GroupedWeight::kOutIn;
};

// Returns y [N, G * out] for x [N, G * in].
//
// Together with PackedUnfold and its order kColumns this is a grouped convolution
// (unfold/unfold.h). Types, copies of weights and gradients are those of Linear (linear.h). Throws
// InvalidArgument for shapes, dtypes and devices that do not fit.
Tensor GroupedLinear(const Tensor& x, const GroupedLayer& layer);

// Returns the outputs of several layers, one below the other: [layers * N, columns]. The layers may
// have different groups, but have outputs of the same width. dx is summed from the last layer to
// the first.
Tensor GroupedLinearStack(const Tensor& x, const std::vector<GroupedLayer>& layers);

// Composes the same as GroupedLinear of single ops: documentation and test oracle.
Tensor GroupedLinearComposed(const Tensor& x, const GroupedLayer& layer);

}  // namespace lathe
