// A dense layer whose outputs are cut into parts: checkpoints that keep the weights of queries,
// keys and values in one matrix have such layers.
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

// The outputs that are computed, those from `begin` to `end`, and the number of parts.
struct LinearPartsOptions {
  int64_t begin = 0, end = -1;  // -1: up to the last output
  int64_t parts = 1;
};

// Returns the outputs x W^T + b from options.begin to options.end. They are cut into parts of one
// size, which lie one below the other: [parts * N, (end - begin) / parts]. x: [N, in],
// weight: [out, in], bias: [out] or undefined, with the dtypes of Linear (core/ops/linear.h). A
// device computes all parts in one product. The backward pass adds the gradients of weight and bias
// straight into leaves' buffers. It assigns dx, which is summed from the last part to the first.
//
//   // Queries, keys and values, one below the other: [3 * T, H].
//   const Tensor qkv = LinearParts(hidden_states, weight, bias, {.parts = 3});
//
// Throws for shapes, dtypes and devices that do not fit.
Tensor LinearParts(const Tensor& x, const Tensor& weight, const Tensor& bias,
                   const LinearPartsOptions& options);

// Composes the same of single ops: documentation and test oracle.
Tensor LinearPartsComposed(const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const LinearPartsOptions& options);

}  // namespace lathe
