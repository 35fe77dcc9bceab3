#include "lathe/distributed/accelerator.h"

#include <cstdlib>
#include <utility>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"

namespace lathe {

Accelerator::Accelerator(AcceleratorOptions options) : options_(std::move(options)) {
  Check(options_.gradient_accumulation_steps >= 1, "accelerator",
        "gradient_accumulation_steps must be at least 1 but is ",
        options_.gradient_accumulation_steps);
  std::string& precision = options_.mixed_precision;
  if (precision.empty()) {
    const char* set = std::getenv("ACCELERATE_MIXED_PRECISION");
    precision = set == nullptr || *set == 0 ? "no" : set;
  }
  Check(precision == "no" || precision == "bf16", "accelerator",
        "mixed_precision must be \"no\" or \"bf16\" but is \"", precision, "\"");
}

void Accelerator::PrepareModel(Module& model) const {
  model.SetComputeDType(mixed_precision() == "bf16" ? DType::kBF16 : DType::kF32);
}

void Accelerator::Backward(const Tensor& loss) const {
  const double n = static_cast<double>(options_.gradient_accumulation_steps);
  lathe::Backward(n == 1 ? loss : Scale(loss, 1 / n));
}

}  // namespace lathe
