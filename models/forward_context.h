// What the layers of an encoder share in a forward pass over a batch.
#pragma once

#include "lathe/data/datasets/batch.h"
#include "lathe/nn/context.h"

namespace lathe {

// Where the model computes, filled up to `rows` rows; with Batch::inputs, if the batch has them
// there, whatever `rows` and `step` say. step: keys dropout. For evaluation; set `training` and
// `seed` for dropout.
nn::ForwardContext MakeForwardContext(const Batch& batch, int64_t rows, Device device,
                                      uint32_t step);

// The batch's labels, where the model computes if Batch::inputs has them there: of its sequences.
Tensor LabelsFor(const Batch& batch, Device device);

// How many of the sequences that the model computes count, [1] i32 where it does; undefined: all.
Tensor NumSequencesFor(const Batch& batch, Device device);

}  // namespace lathe
