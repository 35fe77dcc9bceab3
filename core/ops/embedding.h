// Embedding look-up, several tables summed: y[t] = sum_i tables[i][ids[i][t]].
#pragma once

#include "lathe/core/tensor.h"

namespace lathe {

// ids[i]: [T] i32, tables[i]: [V_i, C], float32 or, on the host, float64. Returns [T, C] on the
// tables' device. padding_rows[i] >= 0 gets no gradient (PyTorch's padding_idx). Throws for an id
// outside its table, naming its place; ids that lie on a device can't be looked at, and one outside
// its table gives a row of NaN and no gradient. The backward pass adds rows into leaves' buffers.
Tensor EmbeddingSum(const std::vector<Tensor>& ids, const std::vector<Tensor>& tables,
                    const std::vector<int64_t>& padding_rows = {});

// Throws as EmbeddingSum does for ids of table number `table`; ids: [T] i32 on the host.
void CheckEmbeddingIds(const Tensor& ids, int64_t table_rows, size_t table);

}  // namespace lathe
