// The rows of an encoder's activations: how many there are, which of them a caller sees, and which
// of them a classifier reads.
#pragma once

#include <cstdint>

#include "lathe/core/tensor.h"
#include "lathe/data/datasets/batch.h"

namespace lathe {

// Returns the number of rows that a device computes for `tokens` tokens: full tiles of 128 rows,
// which are fastest there.
int64_t NumDeviceRows(int64_t tokens);

// Returns the number of rows of activations for `tokens` tokens. The surplus rows belong to no
// sequence, so nothing reads them and their gradients are 0.
int64_t NumActivationRows(int64_t tokens, DType compute_dtype, Device device);

// Returns the first `rows` rows of the hidden states as a caller sees them: in float32, without
// surplus rows. hidden_states: [N, H] with N >= rows -> [rows, H].
Tensor WithoutSurplusRows(const Tensor& hidden_states, int64_t rows);

// Throws `[model] ...` if a sequence doesn't start at position 0. Lathe's classifiers read each
// sequence's first token. Transformers' read the row's first column, so if that is padding the two
// would differ silently.
void CheckSequencesStartAtZero(const Batch& batch, const char* model);

// Throws `[model] ...` if a sequence is longer, or reaches a later position, than a table of
// `max_position_embeddings` rows has.
void CheckPositions(const Batch& batch, const char* model, int64_t max_position_embeddings);

// Throws `[model] ...` if positions are left out between two tokens of a sequence. Attention takes
// neighbours in a sequence to be one position apart, but Transformers' counts padding between them.
// `parts` of the model need this, for the error.
void CheckNoGaps(const Batch& batch, const char* model, const char* parts = "relative positions");

}  // namespace lathe
