#include "lathe/data/loading/tensor_dataset.h"

#include <memory>

namespace lathe {

void CheckRows(const std::vector<Tensor>& tensors) {
  for (size_t k = 0; k < tensors.size(); ++k) {
    const Tensor& tensor = tensors[k];
    Check(tensor.allocated(), "tensor_dataset", "tensor ", k, " has no values");
    Check(tensor.device().is_cpu(), "tensor_dataset", "tensor ", k,
          " must be on the host but is on ", ToString(tensor.device()));
    Check(tensor.ndim() > 0, "tensor_dataset", "tensor ", k, " is a scalar and has no rows");
    Check(tensor.dim(0) == tensors[0].dim(0), "tensor_dataset", "tensor ", k, " has shape ",
          tensor.shape(), " but tensor 0 has ", tensors[0].dim(0), " rows");
  }
}

Tensor RowOf(const Tensor& tensor, int64_t i) {
  Check(i >= 0 && i < tensor.dim(0), "tensor_dataset", "row ", i, " does not exist; there are ",
        tensor.dim(0));
  const Tensor row = tensor.Slice(i, i + 1);
  return row.Reshape(Shape(tensor.shape().begin() + 1, tensor.shape().end()));
}

std::string FingerprintOf(const Tensor& tensor) {
  return ToString(tensor.shape()) + " " + ToString(tensor.dtype()) + " " +
         FingerprintOf(tensor.raw_data(), static_cast<size_t>(tensor.bytes()));
}

}  // namespace lathe
