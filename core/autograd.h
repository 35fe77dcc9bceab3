// The autograd engine: records ops as they run and walks them backwards.
//
// An op computes its result and calls Record with its inputs and a backward function. The engine
// knows no op by name. `Backward(loss)` visits nodes in reverse order of use, without recursion,
// and frees each node as it passes. It adds to the gradients of leaves (`leaf.grad()`). When the
// last part of a leaf's gradient has arrived, it calls the leaf's `LeafGradient::on_ready`.
// Changing a saved tensor in place after the forward pass is an error. One thread records and walks
// a graph at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lathe/core/tensor.h"

namespace lathe {

// A backward function's view of its node.
class BackwardContext {
 public:
  BackwardContext(Tensor grad_output, Node& node)
      : grad_output_(std::move(grad_output)), node_(node) {}

  // Returns d loss / d output, with the output's shape and dtype.
  const Tensor& grad_output() const { return grad_output_; }
  // Returns true if the gradient of input i is wanted. Other gradients need not be computed.
  bool NeedsInputGrad(size_t i) const;
  // Sets the gradient of input i. If the input was broadcast, sums the gradient to the input's
  // shape.
  void SetGrad(size_t i, Tensor grad);
  // Returns the gradient buffer of input i if the input is a leaf that needs a gradient; else
  // undefined. An op that uses it *adds* into the buffer and does not call SetGrad for i.
  Tensor LeafGrad(size_t i);
  // Does the same for ops that can overwrite as well as add. If `*overwrite` is set to true, the
  // buffer's contents are meaningless and every element must be written.
  Tensor LeafGrad(size_t i, bool* overwrite);
  // Does the same for ops that add into the rows `rows` only. All of them must be in range.
  Tensor LeafGradRows(size_t i, std::span<const int32_t> rows);

 private:
  Tensor grad_output_;
  Node& node_;
  friend void WalkBack(const Tensor&, const Tensor&, int64_t);
  std::vector<Tensor> grads_;
};

// The buffer into which the gradient of input i is written: the leaf's own or, for other inputs, a
// fresh one that becomes the gradient. `like` is the input.
struct GradTarget {
  GradTarget(BackwardContext& context, size_t i, const Tensor& like)
      : tensor(context.LeafGrad(i, &overwrite)) {
    if (tensor.defined()) return;
    overwrite = true;
    tensor = Tensor::Empty(like.shape(), like.dtype(), like.device());
    context.SetGrad(i, tensor);
  }
  bool overwrite = false;  // the buffer's contents are void; if false, add to them
  Tensor tensor;
};

using BackwardFunction = std::function<void(BackwardContext&)>;

// Marks `output` as computed by `op` from `inputs` and returns it. Keeps `saved` for the backward
// pass and checks there that none of it was changed in place. Keeps no values of `inputs`:
// `backward` captures the tensors that it reads. It must not capture `output` itself, only
// output.Detach(), or the node would own itself. Does nothing if no input requires a gradient or
// under NoGradGuard. Throws FailedPrecondition for an input that Tensor's Slice, Reshape, Clone or
// To have made from a tensor that needs a gradient, since they record none.
Tensor Record(const char* op, Tensor output, std::vector<Tensor> inputs, std::vector<Tensor> saved,
              BackwardFunction backward);

// Returns true if Record would record for these inputs, so that an op knows whether to save
// anything.
bool NeedsRecord(std::initializer_list<Tensor> inputs);

// Runs the backward pass from `output` and adds to the gradients of leaves. `grad` defaults to 1
// for a scalar.
void Backward(const Tensor& output, const Tensor& grad = {});

// Returns f(x) and keeps only x. The backward pass computes f again, so f must give the same result
// then. (Dropout does: its masks depend on counters only.) In-place changes to other tensors that f
// reads are not noticed. `f` may also use leaves and tensors that require no gradient; the backward
// pass throws if it uses anything else. If x requires no gradient, simply calls f.
Tensor Checkpoint(const std::function<Tensor(const Tensor&)>& f, const Tensor& x);

bool GradEnabled();

// The time that each op takes, in seconds. `forward` is the time since the previous op was
// recorded; `backward` is the time of the op's backward function.
struct OpProfile {
  struct Entry {
    double forward = 0, backward = 0;
    int64_t calls = 0;
  };
  std::map<std::string, Entry> ops;
};
// Starts to add to `profile` on this thread; nullptr stops it.
void SetOpProfile(OpProfile* profile);

// Calls `after_op` whenever an op of this thread calls Record, also under NoGradGuard. If it
// throws, that op throws the same exception. An empty function ends the calls.
void SetAfterOpHook(std::function<void()> after_op);

// While one exists, nothing is recorded on this thread.
class NoGradGuard {
 public:
  NoGradGuard();
  ~NoGradGuard();
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;

 private:
  bool before_;
};

// A user-defined op.
//
//   struct Square : Function {
//     Tensor Forward(const std::vector<Tensor>& x) override {
//       Save({x[0]});
//       return Mul(x[0], x[0]);
//     }
//     std::vector<Tensor> Backward(const Tensor& dy) override {
//       return {Scale(Mul(saved(0), dy), 2)};
//     }
//   };
//   Tensor y = Apply<Square>({x});
//
// Forward runs without recording. Backward returns one gradient per input, undefined where there is
// none.
class Function {
 public:
  virtual ~Function() = default;
  virtual const char* name() const { return "function"; }
  virtual Tensor Forward(const std::vector<Tensor>& inputs) = 0;
  virtual std::vector<Tensor> Backward(const Tensor& grad_output) = 0;

 protected:
  void Save(std::vector<Tensor> tensors) { saved_ = std::move(tensors); }
  const Tensor& saved(size_t i) const { return saved_.at(i); }

 private:
  friend Tensor ApplyFunction(std::shared_ptr<Function>, std::vector<Tensor>);
  std::vector<Tensor> saved_;
};

Tensor ApplyFunction(std::shared_ptr<Function> function, std::vector<Tensor> inputs);

template <typename F, typename... Args>
Tensor Apply(std::vector<Tensor> inputs, Args&&... args) {
  return ApplyFunction(std::make_shared<F>(std::forward<Args>(args)...), std::move(inputs));
}

}  // namespace lathe
