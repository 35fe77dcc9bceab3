#include "lathe/data/loading/tensor_batch.h"

#include <cstring>

namespace lathe {

Tensor StackTensors(const std::vector<Tensor>& rows, size_t column) {
  Check(!rows.empty(), "collate", "there are no samples to stack");
  for (size_t i = 0; i < rows.size(); ++i) {
    Check(rows[i].allocated(), "collate", "tensor ", column, " of the batch's sample ", i,
          " has no values");
    Check(rows[i].shape() == rows[0].shape(), "collate", "tensor ", column,
          " of the batch's sample ", i, " has shape ", rows[i].shape(),
          " but that of sample 0 has ", rows[0].shape());
    Check(rows[i].dtype() == rows[0].dtype() && rows[i].device() == rows[0].device(), "collate",
          "tensor ", column, " of the batch's sample ", i, " is ", ToString(rows[i].dtype()),
          " on ", ToString(rows[i].device()), " but that of sample 0 is ",
          ToString(rows[0].dtype()), " on ", ToString(rows[0].device()));
  }
  Shape shape = rows[0].shape();
  shape.insert(shape.begin(), std::ssize(rows));
  const Tensor stacked = Tensor::Empty(shape, rows[0].dtype(), rows[0].device());
  const auto bytes = static_cast<size_t>(rows[0].bytes());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (bytes == 0) continue;
    if (stacked.device().is_cpu()) {
      std::memcpy(static_cast<char*>(stacked.raw_data()) + i * bytes, rows[i].raw_data(), bytes);
    } else {
      const auto place = static_cast<int64_t>(i);
      stacked.Slice(place, place + 1).Reshape(rows[i].shape()).CopyFrom(rows[i]);
    }
  }
  return stacked;
}

}  // namespace lathe
