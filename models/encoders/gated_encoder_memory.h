// The memory that the passes of ModernBERT and EuroBERT take: encoders whose layers normalise first
// and have gated feed-forward blocks, with hidden states in float32.
#pragma once

#include <cstdint>

#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/pass_memory.h"

namespace lathe {

struct GatedEncoderShape {
  int64_t num_layers = 0, hidden_size = 0, intermediate_size = 0, vocab_size = 0;
  int64_t num_heads = 0, query_columns = 0;  // of attention
  int64_t key_columns = 0;   // of the layer that makes keys; attention repeats them if fewer
  int64_t norm_numbers = 2;  // that a norm keeps for each row: a mean and a deviation, or one
  bool norms_embeddings = true;
  bool norms_first_input = true;  // the first layer begins with a norm, as the others do
  Pooling pooling = Pooling::kFirstToken;
  int64_t head_columns = 0;    // elements that the head keeps for each row that it reads
  int64_t table_bytes = 0;     // of rotary positions
  int64_t num_parameters = 0;  // elements, with the head
};

// Returns what the passes of such a classifier take. Throws if a sum of bytes could overflow.
PassMemory GatedEncoderMemory(const GatedEncoderShape& shape, const MemoryOptions& options);

}  // namespace lathe
