#include "lathe/models/encoders/relative_rows.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

namespace lathe {

RelativeRows::RelativeRows(int64_t max_length, std::function<int64_t(int64_t distance)> row)
    : rows_([max_length, row = std::move(row)] {
        const int64_t length = static_cast<int64_t>(
            std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(max_length, 64))));
        std::vector<int32_t> rows;
        for (int64_t distance = 1 - length; distance < length; ++distance) {
          rows.push_back(
              static_cast<int32_t>(row(std::clamp(distance, 1 - max_length, max_length - 1))));
        }
        return Tensor::FromVector(rows);
      }) {}

}  // namespace lathe
