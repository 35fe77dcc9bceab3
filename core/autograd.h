// The autograd engine: records ops as they run and walks them backwards.
//
// An op computes its result and calls Record with its inputs and a backward function. Nothing here
// knows any op. `Backward(loss)` visits nodes in reverse order of use, without recursion, frees
// each node as it passes, adds leaf gradients into `leaf.grad()` and fires the leaf's
// `on_grad_ready` hook once all of the leaf's parts have arrived. A saved tensor changed in place
// since the forward pass is an error. Single-threaded: one thread records and walks a graph at a
// time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lathe/core/tensor.h"

namespace lathe {

// What a backward function sees of its node.
class BackwardContext {
 public:
  BackwardContext(Tensor grad_output, Node& node)
      : grad_output_(std::move(grad_output)), node_(node) {}

  // d loss / d output, of the output's shape and dtype.
  const Tensor& grad_output() const { return grad_output_; }
  // True if somebody wants the gradient of input i. Compute no other.
  bool Needs(size_t i) const;
  // Gives input i its gradient. A shape that the input was broadcast from is summed back here.
  void SetGrad(size_t i, Tensor grad);
  // The gradient buffer of input i if the input is a leaf: an op that can, *accumulates* into it
  // and calls no SetGrad for i. Else undefined.
  Tensor LeafGrad(size_t i);
  // The same for ops that can overwrite as well as accumulate: where `overwrite` comes back true,
  // the buffer holds nothing of worth and every element must be written.
  Tensor LeafGrad(size_t i, bool* overwrite);
  // The same for ops that accumulate into some rows only: `rows`, which are in range.
  Tensor LeafGradRows(size_t i, std::span<const int32_t> rows);

 private:
  Tensor grad_output_;
  Node& node_;
  friend void WalkBack(const Tensor&, const Tensor&, int64_t);
  std::vector<Tensor> grads_;
};

using BackwardFunction = std::function<void(BackwardContext&)>;

// Marks `output` as computed by `op` from `inputs`, with `saved` kept for the backward pass and
// watched for in-place changes. Of the inputs nothing else is kept: `backward` captures what it
// reads. Returns `output`. Does nothing when no input requires a gradient or under NoGradGuard.
// `backward` may capture tensors, but never `output` itself with its record (capture
// output.Detach()).
Tensor Record(const char* op, Tensor output, std::vector<Tensor> inputs, std::vector<Tensor> saved,
              BackwardFunction backward);

// True if Record would record for these inputs: tells an op whether to save anything.
bool NeedsRecord(std::initializer_list<Tensor> inputs);

// Walks back from `output`. `grad` defaults to 1 for a scalar. Gradients of leaves are accumulated.
void Backward(const Tensor& output, const Tensor& grad = {});

// f(x) of which nothing is kept but x: the backward pass computes f once more, and so must find
// what the forward pass did (dropout does, by its counters); values changed in between are not
// noticed. f may use leaves besides x, and what requires no gradient; the backward pass throws if
// it uses anything else. Where x requires no gradient, f runs as it is.
Tensor Checkpoint(const std::function<Tensor(const Tensor&)>& f, const Tensor& x);

bool GradEnabled();

// Where the time of passes goes, by op: forward, the time since the op before was recorded;
// backward, that of its backward function. Seconds.
struct OpProfile {
  struct Entry {
    double forward = 0, backward = 0;
    int64_t calls = 0;
  };
  std::map<std::string, Entry> ops;
};
// Starts adding to `profile` on this thread; nullptr stops it.
void SetOpProfile(OpProfile* profile);

// `after_op` is called after each op of this thread's forward passes, also under NoGradGuard, and
// may throw, out of the op. Empty: nothing is.
void SetAfterOp(std::function<void()> after_op);

// While one lives, nothing is recorded on this thread.
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
// Forward runs without recording. Backward returns one gradient for each input; an undefined one
// means none.
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
