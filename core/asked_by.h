// What this thread asks a device's memory for, told where there is no room for it: "attention
// (backward)", "gradients in linear (backward)", "optimizer state".
//
//   const AskedBy asked_by = AskedBy::Op("attention");
//   Tensor out = Tensor::Empty(...);
//
// Scopes nest. Within one op the outermost names it; of buffers the innermost. Names are literals.
#pragma once

#include <string>

namespace lathe {

class AskedBy {
 public:
  // An op as it runs. Within a backward function nothing changes: the op that it belongs to asks.
  static AskedBy Op(const char* op);
  // An op's backward function.
  static AskedBy Backward(const char* op);
  // Within a backward function: a forward pass that is made again.
  static AskedBy Recomputation();
  // Work that is recorded for later instead of being done.
  static AskedBy Recording();
  // What a model or an optimizer keeps, whatever the batch: "parameters".
  static AskedBy State(const char* what);
  // Anything else: "batch inputs".
  static AskedBy Buffer(const char* what);

  ~AskedBy();
  AskedBy(const AskedBy&) = delete;
  AskedBy& operator=(const AskedBy&) = delete;

  enum class Pass { kForward, kRecomputed, kBackward };
  // Whoever asks: trivial, for it lies in each thread.
  struct Asker {
    const char* what = nullptr;  // null: the op's tensors
    const char* op = nullptr;    // null: none runs
    Pass pass = Pass::kForward;
    bool is_state = false;
    bool is_recorded = false;
  };

 private:
  explicit AskedBy(const Asker& asker);
  const Asker before_;
};

// Who asks on this thread now, as in the lines above; empty: nobody said.
std::string WhoAsks();
// Whether that is what a model or an optimizer keeps.
bool AskedForState();
// Whether it is an op's tensors in its first pass forward.
bool AskedByForwardOp();

}  // namespace lathe
