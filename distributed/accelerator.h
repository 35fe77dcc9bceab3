// Accelerator: the loop's companion. One process today; the same calls will serve many.
//
//   Accelerator accelerator;
//   accelerator.Prepare(train, eval, *model, optimizer, *scheduler);
//   accelerator.Backward(outputs.loss);
#pragma once

#include <string>

#include "lathe/core/tensor.h"

namespace lathe {

struct AcceleratorOptions {
  int64_t gradient_accumulation_steps = 1;
};

class Accelerator {
 public:
  explicit Accelerator(AcceleratorOptions options = {}) : options_(options) {
    Check(options.gradient_accumulation_steps >= 1, "accelerator",
          "gradient_accumulation_steps must be at least 1 but is ",
          options.gradient_accumulation_steps);
  }

  // Any of loaders, models, optimizers and schedulers, in any order: puts them on the device and
  // shards them over the processes. With one process on the CPU all of them are where they should
  // be.
  template <typename... Objects>
  void Prepare(Objects&...) {}

  // Backward of loss / gradient_accumulation_steps.
  void Backward(const Tensor& loss) const;

  Device device() const { return {}; }
  int num_processes() const { return 1; }
  int process_index() const { return 0; }
  int local_process_index() const { return 0; }
  bool is_main_process() const { return process_index() == 0; }

 private:
  AcceleratorOptions options_;
};

}  // namespace lathe
