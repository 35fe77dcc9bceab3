// The names that TensorFlow's models of Transformers give to their variables.
#pragma once

#include <string>
#include <string_view>

namespace lathe {

// What a variable's dimensions are (TorchOrder).
enum class VariableKind {
  kPlain,            // in the same order as PyTorch's
  kKernel,           // of a product or a convolution
  kDepthwiseKernel,  // of a convolution of each column alone: [taps, columns, 1]
};

// A variable's name in PyTorch, and its kind.
struct TorchName {
  std::string name;
  VariableKind kind = VariableKind::kPlain;
};

// Returns the name in PyTorch: "bert.pooler.dense.weight" for
// "tf_bert_model/bert/pooler/dense/kernel:0". `has_model` tells whether the first part of the name
// is that of the model's class, which PyTorch doesn't have.
TorchName TorchNameOf(std::string_view variable, bool has_model);

// Returns which of a variable's dimensions in TensorFlow is dimension `i` of `rank` in PyTorch.
// Products of matrices and convolutions have their output first in PyTorch, but last in TensorFlow.
int TorchOrder(VariableKind kind, int rank, int i);

}  // namespace lathe
