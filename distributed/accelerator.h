// Accelerator: the loop's companion. One process today; the same calls will serve many.
//
//   Accelerator accelerator;
//   accelerator.Prepare(train, eval, *model, optimizer, *scheduler);
//   accelerator.Backward(outputs.loss);
#pragma once

#include <string>
#include <type_traits>

#include "lathe/core/tensor.h"
#include "lathe/nn/module.h"

namespace lathe {

struct AcceleratorOptions {
  int64_t gradient_accumulation_steps = 1;
  // "no" (float32) or "bf16": bfloat16 activations, their gradients, and products; parameters,
  // their gradients, the optimizer's moments, sums inside products and the loss stay float32.
  // Empty: the environment's ACCELERATE_MIXED_PRECISION, else "no".
  std::string mixed_precision = "";
};

class Accelerator {
 public:
  // Throws for options that are out of range or unknown.
  explicit Accelerator(AcceleratorOptions options = {});

  // Any of loaders, models, optimizers and schedulers, in any order: puts them on the device,
  // shards them over the processes and sets the models' compute dtype. With one process on the CPU
  // all of them are where they should be.
  template <typename... Objects>
  void Prepare(Objects&... objects) {
    (PrepareOne(objects), ...);
  }

  // Backward of loss / gradient_accumulation_steps.
  void Backward(const Tensor& loss) const;

  const std::string& mixed_precision() const { return options_.mixed_precision; }
  Device device() const { return {}; }
  int num_processes() const { return 1; }
  int process_index() const { return 0; }
  int local_process_index() const { return 0; }
  bool is_main_process() const { return process_index() == 0; }

 private:
  template <typename Object>
  void PrepareOne(Object& object) const {
    if constexpr (std::is_base_of_v<Module, Object>) PrepareModel(object);
  }
  void PrepareModel(Module& model) const;

  AcceleratorOptions options_;
};

}  // namespace lathe
