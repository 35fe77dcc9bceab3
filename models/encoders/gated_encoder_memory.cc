#include "lathe/models/encoders/gated_encoder_memory.h"

#include <algorithm>

namespace lathe {
namespace {

constexpr int64_t kFloat = 4;

// Counts the bytes that the encoder's passes keep and need:
//   B texts with T tokens in all, one row for each token
//   H columns in a hidden state, I in a half of the feed-forward block's input
//   A columns in the queries of all heads, K in those of the layer that makes keys
//   E bytes for an element of an activation; hidden states have four
// Dropout keeps nothing, because its masks are computed again. The token ids are left out.
struct GatedActivations {
  GatedActivations(const GatedEncoderShape& encoder, const MemoryOptions& options)
      : shape(encoder),
        B(options.batch_size),
        T(NumPassRows(options)),
        H(encoder.hidden_size),
        I(encoder.intermediate_size),
        A(encoder.query_columns),
        K(encoder.key_columns),
        E(SizeOf(options.compute_dtype)),
        on_gpu(options.on_gpu),
        first_only(encoder.pooling == Pooling::kFirstToken) {}

  int64_t Hidden(int64_t rows) const { return rows * H * kFloat; }
  int64_t Norm(int64_t rows) const { return rows * shape.norm_numbers * kFloat; }

  // Returns the bytes of activations that come before the first layer, with its input if the layer
  // keeps that.
  int64_t Embeddings() const {
    const bool input_is_kept = shape.norms_first_input || E == kFloat;
    const int64_t input = input_is_kept ? Hidden(T) : 0;
    if (!shape.norms_embeddings) return input;
    return (on_gpu ? 0 : Hidden(T)) + Norm(T) + input;
  }

  // Returns the bytes that a layer keeps for `rows` rows of queries, without its output. The first
  // layer's input may be what the layer's norm would make of it.
  int64_t Layer(int64_t rows) const {
    const bool stacked = rows == T;
    return Norm(T) + T * H * E                               // attention's norm and its result
           + (stacked ? 0 : rows * H * E)                    // rows of first tokens
           + (rows + 2 * T) * A * E                          // query, key, value
           + rows * A * E + rows * shape.num_heads * kFloat  // attention's result and log-sums
           + Hidden(rows)               // the sum of its output projection and x
           + Norm(rows) + rows * H * E  // the norm of that sum
           + 3 * rows * I * E;          // the gated activation's inputs and output
  }

  // Returns the same for the last layer and the final norm.
  int64_t LastLayer() const {
    const int64_t rows = first_only ? B : T;
    return Layer(rows) + Hidden(rows) + Norm(rows);  // what enters the final norm
  }

  int64_t Head() const {
    const bool each_row_has_logits = shape.pooling == Pooling::kMeanLogits;
    return each_row_has_logits ? T * shape.head_columns * E : B * shape.head_columns * kFloat;
  }

  // Returns how many bytes fewer the first layer keeps than each of the others.
  int64_t MissingNorm() const {
    if (shape.norms_first_input) return 0;
    return Norm(T) + (E == kFloat ? T * H * E : 0);  // its input is counted as the embeddings'
  }

  int64_t Kept(bool checkpointing) const {
    if (checkpointing) {
      const int64_t input = shape.norms_first_input || E == kFloat ? 0 : Hidden(T);
      return Embeddings() + input + (shape.num_layers - 1) * Hidden(T);
    }
    return Embeddings() + (shape.num_layers - 1) * (Layer(T) + Hidden(T)) + LastLayer() + Head() -
           MissingNorm();
  }

  // Returns the most that the backward pass holds beside Kept().
  int64_t BackwardPeak(bool checkpointing) const {
    // The gradients of key and value in the last layer, when nearly all of Kept() is still there.
    const int64_t attention = first_only ? 2 * T * A * E : 0;
    // The gradients at a layer's gated activation, of its output and of its inputs. The output
    // itself has been freed, and so has the layer's output, whose gradient is there instead.
    const int64_t block = 2 * T * I * E;
    if (!checkpointing) {
      if (first_only && shape.num_layers == 1) return attention;
      return std::max({attention, Head(), block - Head() - (first_only ? LastLayer() : 0)});
    }
    // The last layer is computed again, with the final norm. That norm's result and its gradient
    // come on top.
    const int64_t last = LastLayer() + (first_only ? attention : 2 * Hidden(T) + block);
    // Another layer is computed again, when what was kept of the last one has been freed. The
    // layer's output and its gradient come on top.
    const int64_t other = Layer(T) + 2 * Hidden(T) + block - Hidden(T);
    return shape.num_layers > 1 ? std::max(last, other) : last;
  }

  // Returns the peak without a backward pass. It is in a layer: in its attention, or at its gated
  // activation. The layer always holds its input and the result of its first half.
  int64_t Forward() const {
    const int64_t attention = Hidden(T) + T * H * E + 4 * T * A * E;
    return std::max(attention, 2 * Hidden(T) + 3 * T * I * E);
  }

  // Returns the bytes of the 16-bit copies of the weights in products.
  int64_t LowPrecisionWeights() const {
    if (E == kFloat) return 0;
    const int64_t layer = 2 * H * A + 2 * H * K + 3 * H * I;
    const int64_t head = shape.pooling == Pooling::kMeanLogits ? H * H : 0;
    return (shape.num_layers * layer + head) * E;
  }

  const GatedEncoderShape& shape;
  int64_t B, T, H, I, A, K, E;
  bool on_gpu;
  bool first_only;  // the last layer computes rows of first tokens alone
};

}  // namespace

PassMemory GatedEncoderMemory(const GatedEncoderShape& shape, const MemoryOptions& options) {
  CheckCountable(options, shape.num_layers,
                 16 * shape.hidden_size + 8 * shape.intermediate_size + 6 * shape.query_columns +
                     2 * shape.num_heads,
                 shape.num_parameters);
  const GatedActivations activations(shape, options);
  PassMemory memory;
  memory.low_precision = activations.LowPrecisionWeights();
  memory.kept = activations.Kept(options.gradient_checkpointing) + shape.table_bytes;
  memory.temporary = activations.BackwardPeak(options.gradient_checkpointing);
  memory.inference = activations.Forward() + shape.table_bytes;
  memory.word_rows = shape.vocab_size;
  memory.word_columns = shape.hidden_size;
  return memory;
}

}  // namespace lathe
