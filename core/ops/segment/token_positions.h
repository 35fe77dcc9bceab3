// Positions that leave out padding tokens, as RoBERTa and its siblings count them.
#pragma once

#include <cstdint>

#include "lathe/core/tensor.h"

namespace lathe {

// Returns the row of each token in a table of positions: [T] i32. The first row that belongs to a
// position is padding_id + 1. Tokens of `padding_id` are not counted, and have row padding_id.
//
//   y[t] = padding_id + 1 + positions[t] - (padding tokens before t in its sequence)
//
// Sequence b has the rows from cu_seqlens[b] to cu_seqlens[b + 1] - 1. Beyond the last sequence no
// token is padding. ids, positions: [T] i32; cu_seqlens: [B + 1] i32, from 0 on, not decreasing.
// All lie on one device. The result has no gradient. Source: create_position_ids_from_input_ids of
// Transformers' RoBERTa.
//
//   TokenPositions({7, 1, 8, 9}, {0, 1, 2, 0}, {0, 3, 4}, 1)   // {2, 1, 3, 2}
//
// Throws for shapes, dtypes and devices that do not fit. cu_seqlens is trusted if it lies on a
// device.
Tensor TokenPositions(const Tensor& ids, const Tensor& positions, const Tensor& cu_seqlens,
                      int32_t padding_id);

}  // namespace lathe
