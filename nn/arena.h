// The arena: the values of many parameters in one flat buffer, their gradients in another.
//
// A parameter's tensor becomes a view into it. The global norm is one reduction, an optimizer step
// one pass. Zeroing gradients costs almost nothing: they are marked as stale (core/tensor.h), and
// the next backward pass overwrites them; tables of which few rows have gradients are cleared row
// by row. Order: the reverse of registration, so that gradients that are ready first lie first.
// Each parameter starts at a multiple of 16 elements; the gaps stay 0.
#pragma once

#include <memory>
#include <vector>

#include "lathe/nn/module.h"

namespace lathe {

class ParameterArena {
 public:
  struct Entry {
    Parameter parameter;
    int64_t offset = 0;  // in elements, into values() and grads()
  };

  // Puts all the parameters (float32) into one arena: allocated ones are moved there, the others
  // get undefined values. Nothing moves if they lie in one arena of just these parameters already;
  // its buffers are shared.
  static std::shared_ptr<ParameterArena> Of(const std::vector<Parameter>& parameters);

  const std::vector<Entry>& entries() const { return entries_; }
  const Tensor& values() {  // [n] float32
    Follow();
    return values_;
  }
  // [n] float32, allocated and zeroed on first use. Throws as Tensor::grad() does.
  const Tensor& grads();
  // The same for those who don't write: what is known of rows without gradient stays known.
  // `scaled` false: they multiply by each parameter's grad_scale themselves. Doesn't throw where
  // this process has only a part of the gradients: has_partial_grads().
  const Tensor& GradsToRead(bool scaled = true);
  // The same for those who know what stale gradients, factors and rows are (core/tensor.h):
  // buffers as they are.
  const Tensor& RawGrads();
  void ZeroGrads();
  bool has_partial_grads() const;
  // A buffer of zeros as large as values(), for what an optimizer keeps. Memory is taken as it is
  // used, by rows for tables.
  Tensor NewBuffer() const;

 private:
  // Where all parameters have moved to another device together (Module::To).
  void Follow();
  // Throws if a parameter's values have moved away. Gradients that somebody has set or taken away
  // (Tensor::SetGrad) come back into the arena.
  void Reattach();
  Tensor GradView(const Entry& entry) const;
  std::vector<Entry> entries_;
  Tensor values_;
  Tensor grads_;
};

}  // namespace lathe
