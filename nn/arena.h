// The arena: the values of many parameters in one flat buffer and their gradients in another.
//
// Each parameter's tensor becomes a view into it. So the global norm is one reduction, and an
// optimizer step is one pass. Zeroing gradients costs almost nothing: it only marks them as stale
// (core/leaf_gradient.h), and the next backward pass overwrites them. A table in which few rows
// have gradients is cleared row by row. Parameters lie in the reverse order of registration, so
// that gradients that are ready first lie first. Each starts at a multiple of 16 elements; the gaps
// stay 0.
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

  // Puts all the parameters (float32) into one arena. Values that exist are moved there; the other
  // parameters get undefined values. If the parameters, and no others, lie in one arena already,
  // nothing moves and the buffers of that arena are shared.
  static std::shared_ptr<ParameterArena> FindOrCreate(const std::vector<Parameter>& parameters);

  const std::vector<Entry>& entries() const { return entries_; }
  const Tensor& values() {  // [n] float32
    FollowMovedParameters();
    return values_;
  }
  // Returns all gradients, [n] float32; allocated and zeroed on first use. Throws as Tensor::grad()
  // does.
  const Tensor& grads();
  // Does the same for callers that don't write: what is known of rows without gradient stays known.
  // With `scaled` false, the caller multiplies by each parameter's LeafGradient::scale itself. Does
  // not throw if this rank has only a part of the gradients: see has_partial_grads().
  const Tensor& GradsToRead(bool scaled = true);
  // Does the same for callers that handle stale gradients, factors and rows (core/leaf_gradient.h)
  // themselves: returns the buffer as it is.
  const Tensor& RawGrads();
  void ZeroGrads();
  bool has_partial_grads() const;
  // Returns a zeroed buffer as large as values(), for an optimizer's state. On the host, the system
  // provides memory only for the parts that are used; for tables, only for the pages of used rows.
  Tensor NewBuffer() const;

 private:
  // Adopts the new buffer if all parameters have moved to another device together (Module::To).
  void FollowMovedParameters();
  // Brings gradients that were set or removed (Tensor::SetGrad) back into the arena. Throws if the
  // values of a parameter have moved elsewhere.
  void ReattachGradients();
  Tensor GradView(const Entry& entry) const;
  std::vector<Entry> entries_;
  Tensor values_;
  Tensor grads_;
};

}  // namespace lathe
