#include "lathe/distributed/accelerator.h"

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"

namespace lathe {

void Accelerator::Backward(const Tensor& loss) const {
  const double n = static_cast<double>(options_.gradient_accumulation_steps);
  lathe::Backward(n == 1 ? loss : Scale(loss, 1 / n));
}

}  // namespace lathe
