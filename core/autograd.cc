#include "lathe/core/autograd.h"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/status/status.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/broadcast.h"
#include "lathe/core/device_backend.h"

namespace lathe {
namespace {

thread_local bool grad_enabled = true;
thread_local int64_t next_sequence = 0;
thread_local std::function<void()> after_op;

using Clock = std::chrono::steady_clock;
thread_local OpProfile* op_profile = nullptr;
thread_local Clock::time_point last_event;

// Returns the seconds since the last call on this thread, or since SetOpProfile.
double Lap() {
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - last_event).count();
  last_event = now;
  return seconds;
}

bool NeedsGrad(const Tensor& t) { return t.defined() && t.requires_grad(); }

// Returns what a node keeps of an input. A leaf is kept itself. For the output of another op it is
// a tensor that leads to that op but has no values. (Ops save the values that they need.) Undefined
// if the input needs no gradient.
Tensor Edge(const Tensor& input) {
  if (!NeedsGrad(input)) return {};
  if (input.is_leaf()) return input;
  Tensor edge = Tensor::Unallocated(input.shape(), input.dtype(), input.device());
  edge.impl()->requires_grad = true;
  edge.impl()->producer = input.impl()->producer;
  return edge;
}

}  // namespace

struct Node {
  struct Saved {
    std::shared_ptr<Storage> storage;
    int64_t version;
  };
  const char* op = "";
  int64_t sequence = 0;        // consumers have higher numbers than producers
  std::vector<Tensor> inputs;  // edges
  std::vector<Saved> saved;
  BackwardFunction backward;
  Tensor grad;  // the sum of what the consumers sent
  bool freed = false;

  // Drops everything that the node holds, without recursion along a chain of producers.
  void Free() {
    std::vector<Tensor> pending = std::move(inputs);
    inputs.clear();
    backward = nullptr;
    saved.clear();
    grad = Tensor();
    freed = true;
    while (!pending.empty()) {
      const Tensor last = std::move(pending.back());
      pending.pop_back();
      if (!last.defined() || last.impl().use_count() > 1) continue;
      const std::shared_ptr<Node>& producer = last.impl()->producer;
      if (producer == nullptr || producer.use_count() > 1) continue;
      for (Tensor& input : producer->inputs) pending.push_back(std::move(input));
      producer->inputs.clear();
    }
  }
  ~Node() { Free(); }
};

bool GradEnabled() { return grad_enabled; }
NoGradGuard::NoGradGuard() : before_(grad_enabled) { grad_enabled = false; }
NoGradGuard::~NoGradGuard() { grad_enabled = before_; }

void SetOpProfile(OpProfile* profile) {
  op_profile = profile;
  last_event = Clock::now();
}

void SetAfterOpHook(std::function<void()> function) { after_op = std::move(function); }

bool NeedsRecord(std::initializer_list<Tensor> inputs) {
  return grad_enabled && std::any_of(inputs.begin(), inputs.end(), NeedsGrad);
}

namespace {

void CheckHaveRecords(const char* op, const std::vector<Tensor>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].impl()->lacks_record) continue;
    throw Error(
        absl::StatusCode::kFailedPrecondition,
        "[" + std::string(op) + "] input " + std::to_string(i) +
            " comes from a tensor that needs a gradient, by a member of Tensor that records "
            "none: Slice, Reshape, Clone or To",
        "call the op Slice, Reshape or Cast instead, or Detach() first if no gradient is "
        "wanted");
  }
}

}  // namespace

Tensor Record(const char* op, Tensor output, std::vector<Tensor> inputs, std::vector<Tensor> saved,
              BackwardFunction backward) {
  if (op_profile != nullptr) {
    OpProfile::Entry& entry = op_profile->ops[op];
    entry.forward += Lap();
    ++entry.calls;
  }
  if (after_op) after_op();
  if (grad_enabled) CheckHaveRecords(op, inputs);
  if (!grad_enabled || std::none_of(inputs.begin(), inputs.end(), NeedsGrad)) return output;
  auto node = std::make_shared<Node>();
  node->op = op;
  node->sequence = next_sequence++;
  for (const Tensor& input : inputs) node->inputs.push_back(Edge(input));
  for (const Tensor& t : saved) {
    if (t.allocated()) node->saved.push_back({t.impl()->storage, t.impl()->storage->version()});
  }
  node->backward = std::move(backward);
  output.impl()->producer = std::move(node);
  output.impl()->requires_grad = true;
  output.impl()->lacks_record = false;
  return output;
}

// Runs the backward pass to nodes numbered `first_sequence` or higher. Reaching an earlier node is
// an error.
void WalkBack(const Tensor& output, const Tensor& grad, int64_t first_sequence);

Tensor Checkpoint(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  if (!grad_enabled || !NeedsGrad(x)) return f(x);
  Tensor y;
  {
    NoGradGuard no_grad;
    y = f(x.Detach());
  }
  return Record("checkpoint", y.Detach(), {x}, {x}, [f, x = x.Detach()](BackwardContext& context) {
    struct GradGuard {
      bool before = std::exchange(grad_enabled, true);
      ~GradGuard() { grad_enabled = before; }
    } record;
    Tensor input = x.Detach();
    input.SetRequiresGrad(true);
    const int64_t first = next_sequence;
    const AllocationTag allocation_tag = AllocationTag::Recomputation();
    WalkBack(f(input), context.grad_output(), first);
    if (const Tensor grad = input.grad(); grad.defined()) context.SetGrad(0, grad);
  });
}

namespace {

// Returns true if broadcasting a tensor of shape `from` can give shape `to`.
bool IsBroadcast(const Shape& from, const Shape& to) {
  if (from.size() > to.size()) return false;
  const size_t added = to.size() - from.size();
  for (size_t d = 0; d < from.size(); ++d) {
    if (from[d] != 1 && from[d] != to[added + d]) return false;
  }
  return true;
}

}  // namespace

bool BackwardContext::NeedsInputGrad(size_t i) const { return NeedsGrad(node_.inputs.at(i)); }

void BackwardContext::SetGrad(size_t i, Tensor grad) {
  if (!NeedsInputGrad(i)) return;
  const Tensor& input = node_.inputs[i];
  Check(grad.dtype() == input.dtype(), node_.op, "gradient of input ", i, " has ",
        ToString(grad.dtype()), " but the input has ", ToString(input.dtype()));
  grads_.resize(node_.inputs.size());
  if (grad.shape() != input.shape()) {
    Check(IsBroadcast(input.shape(), grad.shape()), node_.op, "gradient of input ", i,
          " must have shape ", input.shape(), " but has ", grad.shape());
    grad = SumToShape(grad, input.shape());
  }
  grads_[i] = std::move(grad);
}

Tensor BackwardContext::LeafGrad(size_t i) {
  const Tensor& input = node_.inputs.at(i);
  if (!NeedsGrad(input) || !input.is_leaf()) return {};
  return Tensor(input).MaterializeGrad();
}

Tensor BackwardContext::LeafGrad(size_t i, bool* overwrite) {
  *overwrite = false;
  if (!NeedsInputGrad(i)) return {};
  LeafGradient& gradient = node_.inputs[i].impl()->mutable_gradient();
  *overwrite = gradient.buffer != nullptr && std::exchange(gradient.is_stale, false);
  return LeafGrad(i);
}

Tensor BackwardContext::LeafGradRows(size_t i, std::span<const int32_t> rows) {
  if (!NeedsInputGrad(i) || !node_.inputs[i].is_leaf()) return {};
  LeafGradient& gradient = node_.inputs[i].impl()->mutable_gradient();
  ClearStaleGrad(gradient);
  std::optional<std::vector<int32_t>> written = std::move(gradient.rows);
  Tensor grad = LeafGrad(i);
  if (!grad.defined() || !written) return grad;
  std::vector<int32_t> now(rows.begin(), rows.end()), fresh;
  std::sort(now.begin(), now.end());
  now.erase(std::unique(now.begin(), now.end()), now.end());
  std::set_difference(now.begin(), now.end(), written->begin(), written->end(),
                      std::back_inserter(fresh));
  // New rows are 0 already. They are written all the same, because a page that is read before it is
  // written is mapped twice.
  for (const int32_t row : fresh) grad.Slice(row, row + 1).Fill(0);
  const auto middle = written->insert(written->end(), fresh.begin(), fresh.end());
  std::inplace_merge(written->begin(), middle, written->end());
  // A list of more than half of the rows would save nothing.
  if (std::ssize(*written) <= grad.dim(0) / 2) gradient.rows = std::move(written);
  return grad;
}

namespace {

// target += grad. Does not change a buffer that other code may hold.
void Accumulate(Tensor& target, const Tensor& grad) {
  if (!target.defined()) {
    target = grad;
  } else if (target.impl().use_count() == 1 && target.impl()->storage.use_count() == 1) {
    AddInPlace(target, grad);
  } else {
    target = target.Clone();
    AddInPlace(target, grad);
  }
}

// Adds to the leaf's own buffer in place, because others, such as the arena, may see that buffer.
void AccumulateLeaf(const Tensor& leaf, const Tensor& grad) {
  LeafGradient& gradient = leaf.impl()->mutable_gradient();
  if (gradient.is_stale) {
    Tensor(gradient.buffer).CopyFrom(grad);
    gradient.is_stale = false;
    gradient.rows.reset();
  } else if (gradient.buffer != nullptr) {
    Tensor buffer = Tensor(leaf).MaterializeGrad();
    AddInPlace(buffer, grad);
  } else {
    const LeafMemoryScope scope(*leaf.impl());
    const AllocationTag allocation_tag = AllocationTag::State("gradients");
    gradient.buffer = grad.Clone().impl();
  }
}

void NotifyReady(const Tensor& leaf) {
  if (const auto& on_ready = leaf.impl()->gradient().on_ready) on_ready();
}

// For each leaf that needs a gradient, the number of its parts that are still to arrive.
using LeafParts = absl::flat_hash_map<const TensorImpl*, int>;

// Returns the nodes from which `output` was computed, consumers before producers, and counts the
// parts of leaves' gradients. Throws for nodes before `first_sequence` and for freed ones.
std::vector<std::shared_ptr<Node>> NodesBelow(const Tensor& output, int64_t first_sequence,
                                              LeafParts& leaf_parts) {
  std::vector<std::shared_ptr<Node>> nodes;
  absl::flat_hash_set<const Node*> seen;
  std::vector<std::shared_ptr<Node>> to_visit = {output.impl()->producer};
  seen.insert(to_visit[0].get());
  while (!to_visit.empty()) {
    std::shared_ptr<Node> node = std::move(to_visit.back());
    to_visit.pop_back();
    Check(!node->freed, "backward", "the graph of [", node->op,
          "] was freed by an earlier backward pass; run the forward pass again");
    Check(node->sequence >= first_sequence, "checkpoint", "the function uses a tensor that [",
          node->op, "] computed outside of it; pass that tensor as x or detach it");
    for (const Tensor& input : node->inputs) {
      if (!NeedsGrad(input)) continue;
      if (input.is_leaf()) {
        ++leaf_parts[input.impl().get()];
      } else if (seen.insert(input.impl()->producer.get()).second) {
        to_visit.push_back(input.impl()->producer);
      }
    }
    nodes.push_back(std::move(node));
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const auto& a, const auto& b) { return a->sequence > b->sequence; });
  return nodes;
}

}  // namespace

void Backward(const Tensor& output, const Tensor& grad) { WalkBack(output, grad, 0); }

void WalkBack(const Tensor& output, const Tensor& grad, int64_t first_sequence) {
  Check(output.defined() && output.requires_grad(), "backward",
        "the tensor was not computed from anything that requires a gradient");
  Tensor start = grad;
  if (!start.defined()) {
    Check(output.numel() == 1, "backward", "a gradient must be given for shape ", output.shape());
    const AllocationTag allocation_tag = AllocationTag::Buffer("the loss's gradient");
    start = Tensor::Full(output.shape(), 1.0, output.dtype(), output.device());
  }
  Check(start.shape() == output.shape(), "backward", "gradient must have shape ", output.shape(),
        " but has ", start.shape());
  NoGradGuard no_grad;
  if (output.is_leaf()) {
    AccumulateLeaf(output, start);
    NotifyReady(output);
    return;
  }

  LeafParts leaf_parts;
  std::vector<std::shared_ptr<Node>> nodes = NodesBelow(output, first_sequence, leaf_parts);
  nodes.front()->grad = start;
  for (std::shared_ptr<Node>& node : nodes) {
    const AllocationTag allocation_tag = AllocationTag::Backward(node->op);
    std::vector<Tensor> grads;
    if (node->grad.defined()) {
      for (const Node::Saved& saved : node->saved) {
        Check(saved.storage->version() == saved.version, node->op,
              "a tensor that the backward pass needs was changed in place after the forward pass");
      }
      BackwardContext context(std::move(node->grad), *node);
      if (op_profile != nullptr) Lap();
      node->backward(context);
      if (op_profile != nullptr) op_profile->ops[node->op].backward += Lap();
      grads = std::move(context.grads_);
    }
    grads.resize(node->inputs.size());
    for (size_t i = 0; i < grads.size(); ++i) {
      const Tensor& input = node->inputs[i];
      if (!NeedsGrad(input)) continue;
      if (!input.is_leaf()) {
        if (grads[i].defined()) Accumulate(input.impl()->producer->grad, std::move(grads[i]));
        continue;
      }
      if (grads[i].defined()) AccumulateLeaf(input, grads[i]);
      if (--leaf_parts[input.impl().get()] == 0) NotifyReady(input);
    }
    node->Free();
    node.reset();
  }
}

Tensor ApplyFunction(std::shared_ptr<Function> function, std::vector<Tensor> inputs) {
  Tensor output;
  {
    NoGradGuard no_grad;
    const AllocationTag allocation_tag = AllocationTag::Op(function->name());
    output = function->Forward(inputs);
  }
  Check(output.defined(), function->name(), "Forward returned no tensor");
  // Record marks the output as computed by this op. So it must not mark an input that Forward
  // passed through, nor a saved tensor, which would then own the op that keeps it.
  output = output.Detach();
  const char* name = function->name();
  const std::vector<Tensor> saved = function->saved_;
  const size_t count = inputs.size();
  return Record(name, std::move(output), std::move(inputs), saved,
                [function, name, count](BackwardContext& context) {
                  std::vector<Tensor> grads = function->Backward(context.grad_output());
                  Check(grads.size() == count, name, "Backward must return ", count,
                        " gradients but returned ", grads.size());
                  for (size_t i = 0; i < count; ++i) {
                    if (grads[i].defined()) context.SetGrad(i, grads[i]);
                  }
                });
}

}  // namespace lathe
