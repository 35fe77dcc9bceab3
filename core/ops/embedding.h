// Embedding look-up in several tables: y[t] = sum_i tables[i][ids[i][t]]. There is one op for it
// alone, and one with the layer norm and the dropout that follow it.
#pragma once

#include "lathe/core/ops/dropout.h"

namespace lathe {

// Returns the sum of the tables' rows, [T, C] on the tables' device. ids[i]: [T] i32. tables[i]:
// [V_i, C], float32 or, on the host, float64. Row padding_rows[i] of a table gets no gradient if
// that number is not negative (PyTorch's padding_idx). Throws for an id outside its table and names
// its place. Ids on a device are not checked: one outside its table gives a row of NaN and no
// gradient. The backward pass adds the gradient's rows into leaves' buffers.
Tensor EmbeddingSum(const std::vector<Tensor>& ids, const std::vector<Tensor>& tables,
                    const std::vector<int64_t>& padding_rows = {});

// Returns Dropout(LayerNorm(EmbeddingSum(...))) in `dtype`: [T, C]. weight, bias: [C] float32; the
// bias may be undefined. On a device one kernel computes it by the same formulas. It saves only a
// mean and a deviation for each row. The backward pass reads the tables again, so they must not
// change before it.
Tensor EmbeddingLayerNorm(const std::vector<Tensor>& ids, const std::vector<Tensor>& tables,
                          const std::vector<int64_t>& padding_rows, const Tensor& weight,
                          const Tensor& bias, double eps, const DropoutSpec& dropout, DType dtype);
// Composes the same of single ops. It runs on the host and for more tables than one kernel takes,
// and is the test oracle.
Tensor EmbeddingLayerNormComposed(const std::vector<Tensor>& ids, const std::vector<Tensor>& tables,
                                  const std::vector<int64_t>& padding_rows, const Tensor& weight,
                                  const Tensor& bias, double eps, const DropoutSpec& dropout,
                                  DType dtype);

// Throws as EmbeddingSum does if one of the ids is outside table number `table`, which has
// `table_rows` rows. ids: [T] i32 on the host.
void CheckEmbeddingIds(const Tensor& ids, int64_t table_rows, size_t table);

}  // namespace lathe
