// The context that the layers of a model share in a forward pass over a batch.
#pragma once

#include <cstdint>

#include "lathe/data/datasets/batch.h"
#include "lathe/data/loading/batch_info.h"
#include "lathe/nn/context.h"
#include "lathe/nn/modules/packing.h"

namespace lathe {

// Returns the context of a batch of any type for layers with dropout. Row i of the activations is
// the batch's sample i: [B, C]. They are on `device`. All ranks together drop what one process
// would. Throws for a batch that no DataLoader has made.
nn::ForwardContext ContextOf(const BatchInfo& batch, bool training, uint64_t seed,
                             Device device = {});

// Does the same for packed activations, whose sequence b is the batch's sample b. Throws if the
// packing has another number of sequences.
nn::ForwardContext ContextOf(const BatchInfo& batch, const nn::Packing& packing, bool training,
                             uint64_t seed);

// Returns the context on `device`, filled up to `rows` rows. If Batch::on_device is on that device,
// it is used instead, and `rows` and `step` have no effect. `step` is a key of dropout. The context
// is for evaluation; set `training` and `seed` for dropout.
nn::ForwardContext MakeForwardContext(const Batch& batch, int64_t rows, Device device,
                                      uint32_t step);

// Returns the batch's labels. They are those of Batch::on_device, for all its sequences, if these
// are on `device`.
Tensor LabelsFor(const Batch& batch, Device device);

// Returns the batch's sample weights in the same way, on `device`. Undefined if it has none.
Tensor SampleWeightsFor(const Batch& batch, Device device);

// Returns the batch's encoded sequences in the same way, on `device`. Undefined if it has none.
Tensor EncodedFor(const Batch& batch, Device device);

// Returns how many of the computed sequences count: [1] i32 on `device`. Undefined if all count.
Tensor NumCountedSequences(const Batch& batch, Device device);

}  // namespace lathe
