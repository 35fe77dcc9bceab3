// RelativeRows: tells attention which row of a table belongs to each distance of a query and a key.
//
//   // A row for each distance: rows 0 to 2 * 512 - 2 for distances -511 to 511.
//   RelativeRows rows(512, [](int64_t distance) { return distance + 511; });
//   context.relative.rows = rows.On(device);
#pragma once

#include <cstdint>
#include <functional>

#include "lathe/core/tensor.h"
#include "lathe/models/encoders/device_constant.h"

namespace lathe {

class RelativeRows {
 public:
  // `row(i - j)` is the row for query i and key j of a sequence. It is called for the distances
  // that sequences of up to `max_length` tokens have.
  RelativeRows(int64_t max_length, std::function<int64_t(int64_t distance)> row);

  // Returns RelativePositions::rows for sequences of up to L tokens: [2 L - 1] i32 on `device`. L
  // is max_length rounded up as GPUs round the length of a batch (BatchPasses). Greater distances
  // than those of max_length have the rows of the greatest ones. The first call for a device makes
  // the table there, later calls return the same. Threads may call it at the same time.
  Tensor On(Device device) { return rows_.On(device); }

 private:
  DeviceConstant rows_;
};

}  // namespace lathe
