#include "lathe/models/encoders/relative_rows.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace lathe {

RelativeRows::RelativeRows(int64_t max_length, std::function<int64_t(int64_t distance)> row)
    : max_length_(max_length), row_(std::move(row)) {}

Tensor RelativeRows::On(Device device) {
  const std::lock_guard lock(mutex_);
  for (const Tensor& table : tables_) {
    if (table.device() == device) return table;
  }
  const int64_t length = static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(max_length_, 64))));
  std::vector<int32_t> rows;
  for (int64_t distance = 1 - length; distance < length; ++distance) {
    rows.push_back(
        static_cast<int32_t>(row_(std::clamp(distance, 1 - max_length_, max_length_ - 1))));
  }
  return tables_.emplace_back(Tensor::FromVector(rows).To(device));
}

}  // namespace lathe
