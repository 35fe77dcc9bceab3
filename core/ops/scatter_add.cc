#include "lathe/core/ops/scatter_add.h"

#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/scatter_add_kernels.h"

namespace lathe {

void ScatterAddRowsOnDevice(const Tensor& to, const Tensor& x, const Tensor& index,
                            int64_t skipped) {
  const int64_t count = index.numel();
  if (count == 0 || to.numel() == 0) return;
  Check(count <= INT32_MAX, "scatter_add", "expected at most 2^31 - 1 rows but got ", count);
  const int64_t columns = to.numel() / to.dim(0);
  const Tensor counters = Tensor::Zeros({2, to.dim(0)}, DType::kI32, to.device());
  const Tensor partial = Tensor::Empty({count, columns}, DType::kF32, to.device());
  DeviceKernels<ScatterAddKernels>().add({.to = to.raw_data(),
                                          .x = x.raw_data(),
                                          .type = to.dtype(),
                                          .index = index.raw_data(),
                                          .index_type = index.dtype(),
                                          .count = count,
                                          .num_rows = to.dim(0),
                                          .columns = columns,
                                          .skipped = skipped,
                                          .counters = counters.raw_data(),
                                          .partial = partial.data<float>()});
}

}  // namespace lathe
