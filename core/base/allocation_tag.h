// Labels for device memory that this thread requests. An out-of-memory error names the current
// label: "attention (backward)", "gradients in linear (backward)", "optimizer state".
//
//   const AllocationTag allocation_tag = AllocationTag::Op("attention");
//   Tensor out = Tensor::Empty(...);
//
// Scopes nest. Among nested ops the outermost one gives the name; among nested buffers and states
// the innermost one does. Names must be string literals.
#pragma once

#include <string>

namespace lathe {

class AllocationTag {
 public:
  // Labels the forward function of `op`. Has no effect inside another op or a backward function:
  // that op keeps the label.
  static AllocationTag Op(const char* op);
  // Labels the backward function of `op`.
  static AllocationTag Backward(const char* op);
  // Labels a forward pass that a backward function computes again.
  static AllocationTag Recomputation();
  // Labels work that is recorded into a CUDA graph instead of being run.
  static AllocationTag Recording();
  // Labels memory that a model or an optimizer keeps, which does not depend on the batch:
  // "parameters".
  static AllocationTag State(const char* what);
  // Labels any other buffer: "batch inputs".
  static AllocationTag Buffer(const char* what);

  ~AllocationTag();
  AllocationTag(const AllocationTag&) = delete;
  AllocationTag& operator=(const AllocationTag&) = delete;

  enum class Pass { kForward, kRecomputed, kBackward };
  // The current label. The struct is trivial, because every thread holds one in a constinit
  // thread_local.
  struct AllocationSource {
    const char* what = nullptr;  // null: the op's own tensors
    const char* op = nullptr;    // null: no op runs
    Pass pass = Pass::kForward;
    bool is_state = false;
    bool is_recorded = false;
  };

 private:
  explicit AllocationTag(const AllocationSource& allocation_source);
  const AllocationSource before_;
};

// Returns this thread's label in the form shown above; empty if no scope is open.
std::string CurrentAllocationTag();
// Returns true if the label is that of a State.
bool AllocatesState();
// Returns true if the label is that of an op's own tensors in a first (not recomputed) forward
// pass.
bool AllocatesInForwardOp();

}  // namespace lathe
