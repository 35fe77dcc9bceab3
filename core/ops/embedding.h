// Embedding look-up, several tables summed, y[t] = sum_i tables[i][ids[i][t]]; alone and with the
// layer norm and the dropout behind it.
#pragma once

#include "lathe/core/ops/dropout.h"

namespace lathe {

// ids[i]: [T] i32, tables[i]: [V_i, C], float32 or, on the host, float64. Returns [T, C] on the
// tables' device. padding_rows[i] >= 0 gets no gradient (PyTorch's padding_idx). Throws for an id
// outside its table, naming its place; ids that lie on a device can't be looked at, and one outside
// its table gives a row of NaN and no gradient. The backward pass adds rows into leaves' buffers.
Tensor EmbeddingSum(const std::vector<Tensor>& ids, const std::vector<Tensor>& tables,
                    const std::vector<int64_t>& padding_rows = {});

// Dropout(LayerNorm(EmbeddingSum(...))) in `dtype`: [T, C]. weight, bias: [C] float32. Elsewhere
// than on the host one kernel: the same numbers, with nothing kept for the backward pass but a mean
// and a deviation for each row, so that the tables must not change before it.
Tensor EmbeddingLayerNorm(const std::vector<Tensor>& ids, const std::vector<Tensor>& tables,
                          const std::vector<int64_t>& padding_rows, const Tensor& weight,
                          const Tensor& bias, double eps, const DropoutSpec& dropout, DType dtype);
// The same from single ops: what runs on the host, and test oracle.
Tensor EmbeddingLayerNormComposed(const std::vector<Tensor>& ids, const std::vector<Tensor>& tables,
                                  const std::vector<int64_t>& padding_rows, const Tensor& weight,
                                  const Tensor& bias, double eps, const DropoutSpec& dropout,
                                  DType dtype);

// Throws as EmbeddingSum does for ids of table number `table`; ids: [T] i32 on the host.
void CheckEmbeddingIds(const Tensor& ids, int64_t table_rows, size_t table);

}  // namespace lathe
