#include "lathe/models/pass_memory.h"

#include <algorithm>

#include "lathe/core/base/error.h"
#include "lathe/models/rows.h"

namespace lathe {
namespace {

constexpr int64_t kFloat = 4;

// Counts the bytes that the encoder's passes keep and need:
//   B texts with T tokens in all, one row for each token
//   H columns in a hidden state, I in the feed-forward block, C in the embeddings
//   A heads of attention
//   E bytes for an element of an activation
// Dropout keeps nothing, because its masks are computed again. The token ids are left out.
struct EncoderActivations {
  EncoderActivations(const PostNormEncoderShape& shape, const MemoryOptions& options)
      : layers(shape.num_layers),
        different_layers(shape.num_different_layers),
        B(options.batch_size),
        T(ActivationRows(options)),
        H(shape.layer.hidden_size),
        C(shape.embedding_size),
        I(shape.layer.intermediate_size),
        A(shape.layer.num_attention_heads),
        E(SizeOf(options.compute_dtype)),
        hidden(T * H * E),
        inner(T * I * E),
        distances(E < kFloat ? shape.layer.num_distances * (H / A) * E : 0),
        head(B * shape.head_columns * kFloat),
        projects(C != H || shape.always_projects),
        gated(!shape.layer.names.gate.empty()),
        on_gpu(options.on_gpu) {}

  // Returns the bytes of activations between the embeddings and the first layer.
  int64_t Embeddings() const {
    // Embedding, norm and dropout are one op here (core/ops/embedding.h).
    const int64_t normed = T * C * E;
    const int64_t projected = projects ? hidden : 0;
    if (on_gpu) return 2 * T * kFloat + normed + projected;
    return T * C * kFloat         // the sum of the embeddings
           + 2 * T * kFloat       // its norm's mean and deviation
           + normed + projected;  // the input of the first layer, and of the projection before it
  }

  // Returns the bytes of activations around the activation function. The CPU keeps only its input
  // and computes its output again. A gated one has two inputs, and its output is kept.
  int64_t Inner(int64_t bytes) const {
    if (gated) return 3 * bytes;
    return on_gpu ? 2 * bytes : bytes;
  }
  // Returns the most that the backward pass holds there beside Inner(): the gradient of the
  // activation function's input and, on the CPU, its recomputed output. On a GPU the gradient of
  // that output takes the output's place. So it does with a gate, which has two inputs.
  int64_t InnerGradients() const { return on_gpu && !gated ? inner : 2 * inner; }

  // Returns the bytes of the gradients that then lie before and after the residual addition. With a
  // gate, the product behind the activation has used up one of the two.
  int64_t AroundAddition() const { return gated ? hidden : 2 * hidden; }

  // Returns the bytes of activations that a layer keeps, for all tokens, including its output.
  int64_t Layer() const {
    return 3 * hidden         // query, key, value
           + hidden           // attention's result
           + T * A * kFloat   // attention's log-sums, to compute the probabilities again
           + distances        // attention's table of distances
           + 2 * hidden       // the sum of its output projection and x, the norm of that sum
           + Inner(inner)     // the activation function's input and output
           + 2 * hidden       // the sum after the output projection, the norm of that sum
           + 4 * T * kFloat;  // the norms' means and deviations
  }

  // Returns the same for the last layer and the head. The layer's queries and all activations after
  // attention exist for first tokens only.
  int64_t LastLayer() const {
    const int64_t first = B * H * E;
    return 2 * hidden              // key, value
           + distances             // as in Layer()
           + first                 // rows of first tokens
           + 6 * first             // query, attention, and two times sum and norm
           + Inner(B * I * E)      // around the activation function
           + (A + 4) * B * kFloat  // log-sums, means, deviations
           + head;
  }

  int64_t Kept(bool checkpointing) const {
    return Embeddings() + LastLayer() - (checkpointing ? LastLayer() : 0) +
           (layers - 1) * (checkpointing ? hidden : Layer());
  }

  // Returns the most that the backward pass holds beside Kept().
  int64_t BackwardPeak(bool checkpointing) const {
    // The gradients of key and value in the last layer, when all of Kept() is still there.
    const int64_t dkv = 2 * hidden;
    if (!checkpointing) {
      // The peak is in the layer before the last, at its activation function. InnerGradients() and
      // those around the residual addition come on top. Freed by then are the last layer's key and
      // value, and this layer's output and sum (4).
      return std::max(dkv, layers > 1 ? InnerGradients() + AroundAddition() - 4 * hidden : 0);
    }
    // The last layer is computed again, and its backward pass adds dkv.
    const int64_t last = LastLayer() + dkv;
    if (layers == 1) return last;
    // An earlier layer is computed again. Its output then exists twice: as kept and as recomputed.
    // Gradients around the addition come on top, and those at the activation function. The sum has
    // been freed (1).
    const int64_t all =
        Layer() - hidden + std::max(3 * hidden, InnerGradients() + AroundAddition());
    return std::max(last, all);
  }

  // Returns the peak without a backward pass. It is in the feed-forward block of a layer, or in the
  // embeddings if these are larger. The block always holds two hidden states: the layer's input and
  // the norm after attention. First it also holds the inner activation, which is computed in place,
  // and the output projection. At its end it holds three more hidden states instead: the
  // projection, the sum and the norm of that sum. The last layer holds three hidden states at most.
  int64_t Forward() const {
    const int64_t embeddings =
        on_gpu ? T * C * E : 2 * T * C * kFloat + (E < kFloat ? T * C * E : 0);
    if (layers == 1) return std::max(embeddings, 3 * hidden);
    const int64_t block = gated ? 2 * hidden + 3 * inner : 3 * hidden + inner;
    return std::max({embeddings, 5 * hidden, block});
  }

  // Returns the bytes of the 16-bit copies of the weights in the layers' products.
  int64_t LowPrecisionWeights() const {
    const int64_t projection = projects ? C * H : 0;
    const int64_t block = (gated ? 3 : 2) * H * I;
    return E < kFloat ? (different_layers * (4 * H * H + block) + projection) * E : 0;
  }

  int64_t layers, different_layers, B, T, H, C, I, A, E;
  int64_t hidden, inner;  // bytes of one [T, H] and of one [T, I]
  int64_t distances;      // bytes of a layer's 16-bit copy of its table of distances
  int64_t head;           // bytes that the head keeps
  bool projects;          // a linear layer follows the embeddings
  bool gated;             // the feed-forward blocks have gates
  bool on_gpu;
};

}  // namespace

int64_t ActivationRows(const MemoryOptions& options) {
  const int64_t tokens = options.batch_size * options.max_seq_length;
  return options.on_gpu ? NumDeviceRows(tokens) : tokens;
}

void CheckCountable(double columns, int64_t num_parameters, const MemoryOptions& options) {
  const double tokens =
      static_cast<double>(options.batch_size) * static_cast<double>(options.max_seq_length);
  const double floats = tokens * columns + 5 * static_cast<double>(num_parameters);
  if (floats * kFloat * static_cast<double>(options.num_processes) < 9e18) return;
  throw InvalidArgument("the estimate has more bytes than can be counted",
                        "give a smaller batch, shorter texts or fewer processes");
}

PassMemory PostNormEncoderMemory(const PostNormEncoderShape& shape, const MemoryOptions& options) {
  const nn::PostNormLayerOptions& layer = shape.layer;
  const int64_t inner = (layer.names.gate.empty() ? 4 : 8) * layer.intermediate_size;
  CheckCountable(
      static_cast<double>(20 * layer.hidden_size + inner + 2 * layer.num_attention_heads) *
          static_cast<double>(shape.num_layers + 1),
      shape.num_parameters, options);
  const EncoderActivations activations(shape, options);
  PassMemory memory;
  memory.low_precision = activations.LowPrecisionWeights();
  memory.kept = activations.Kept(options.gradient_checkpointing) + shape.table_bytes;
  memory.temporary = activations.BackwardPeak(options.gradient_checkpointing);
  memory.inference = activations.Forward() + shape.table_bytes;
  memory.word_rows = shape.vocab_size;
  memory.word_columns = shape.embedding_size;
  return memory;
}

}  // namespace lathe
