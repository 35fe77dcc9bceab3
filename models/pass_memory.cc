#include "lathe/models/pass_memory.h"

#include <algorithm>

#include "lathe/core/base/error.h"
#include "lathe/core/kernels/attention_offset_sums.h"
#include "lathe/models/rows.h"

namespace lathe {
namespace {

constexpr int64_t kFloat = 4;

// Counts the bytes that the passes of a PostNormEncoder keep and need:
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
        T(NumPassRows(options)),
        H(shape.layer.hidden_size),
        C(shape.embedding_size),
        I(shape.layer.intermediate_size),
        A(shape.layer.num_attention_heads),
        E(SizeOf(options.compute_dtype)),
        hidden(T * H * E),
        inner(T * I * E),
        distances(E < kFloat ? shape.layer.num_distances * (H / A) * E : 0),
        head(B * shape.head_columns * kFloat),
        layer_weights(shape.layer_weights != 0
                          ? shape.layer_weights
                          : 4 * H * H + (shape.layer.names.gate.empty() ? 2 : 3) * H * I),
        activated(shape.keeps_activated ? inner : 0),
        scratch(RelativeScratchBytes(options, RelativeColumns(shape), false)),
        last_scratch(RelativeScratchBytes(options, RelativeColumns(shape), true)),
        projects(C != H || shape.always_projects),
        keeps_activated(options.on_gpu || shape.keeps_activated),
        gated(!shape.layer.names.gate.empty()),
        on_gpu(options.on_gpu) {}

  // Returns the columns of all tables of relative positions that a layer's attention reads.
  static int64_t RelativeColumns(const PostNormEncoderShape& shape) {
    const bool own = shape.layer.num_distances > 0;
    return shape.relative_columns +
           (own ? shape.layer.hidden_size * (shape.layer.multiplies_keys ? 2 : 1) : 0);
  }

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

  // Returns the bytes of activations around the activation function. FeedForward on the CPU keeps
  // only its input and computes its output again. A gated one has two inputs, and its output is
  // kept.
  int64_t Inner(int64_t bytes) const {
    if (gated) return 3 * bytes;
    return keeps_activated ? 2 * bytes : bytes;
  }
  // Returns the most that the backward pass holds there beside Inner(): the gradient of the
  // activation function's input and, if need be, its recomputed output. A kept output makes room
  // for its own gradient, but a gate has two inputs.
  int64_t InnerGradients() const { return keeps_activated && !gated ? inner : 2 * inner; }

  // Returns the bytes of the gradients that then lie before and after the residual addition. With a
  // gate, the product behind the activation has used up one of the two.
  int64_t AroundAddition() const { return gated ? hidden : 2 * hidden; }

  // Returns the same for attention's backward pass: the gradients of the residual, of the result,
  // and of query, key and value. The feed-forward block and the norm before it are freed by then.
  int64_t AttentionGradients() const { return 5 * hidden + scratch - Inner(inner) - 2 * hidden; }

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

  StackBytes Stack() const {
    StackBytes bytes;
    bytes.layers = layers;
    bytes.hidden = hidden;
    bytes.embeddings = Embeddings();
    bytes.embeddings_forward =
        on_gpu ? T * C * E : 2 * T * C * kFloat + (E < kFloat ? T * C * E : 0);
    bytes.kept = Layer();
    // The peak is at the activation function. The gradients around the residual addition come on
    // top. Freed by then are the last layer's key and value, and this layer's output and sum (4).
    bytes.gradients = std::max(InnerGradients() + AroundAddition(), AttentionGradients());
    bytes.freed = 4 * hidden;
    // The output exists as kept and as recomputed, and so do the gradients of both and of the
    // addition. The sum has been freed (1).
    bytes.gradients_of_output = 3 * hidden;
    bytes.last_kept = LastLayer();
    bytes.last_gradients = 2 * hidden + last_scratch;  // of key and value
    bytes.forward = Forward();
    bytes.last_forward = 3 * hidden;
    return bytes;
  }

  // Returns the peak of a layer without a backward pass. It is in the feed-forward block. The block
  // always holds two hidden states: the layer's input and the norm after attention. First it also
  // holds the inner activation, which may be computed in place, and the output projection. At its
  // end it holds three more hidden states instead: the projection, the sum and the norm of that
  // sum.
  int64_t Forward() const {
    const int64_t block = gated ? 2 * hidden + 3 * inner : 3 * hidden + inner + activated;
    return std::max(5 * hidden, block);
  }

  // Returns the bytes of the 16-bit copies of the weights in the layers' products.
  int64_t LowPrecisionWeights() const {
    const int64_t projection = projects ? C * H : 0;
    return E < kFloat ? (different_layers * layer_weights + projection) * E : 0;
  }

  int64_t layers, different_layers, B, T, H, C, I, A, E;
  int64_t hidden, inner;  // bytes of one [T, H] and of one [T, I]
  int64_t distances;      // bytes of a layer's 16-bit copy of its table of distances
  int64_t head;           // bytes that the head keeps
  int64_t layer_weights;  // elements of a layer's matrices
  int64_t activated;      // bytes that the activation function takes without a backward pass
  int64_t scratch, last_scratch;  // RelativeScratchBytes of a layer, and of the last layer
  bool projects;                  // a linear layer follows the embeddings
  bool keeps_activated;           // the backward pass finds the activation function's output
  bool gated;                     // the feed-forward blocks have gates
  bool on_gpu;
};

}  // namespace

int64_t NumPassRows(const MemoryOptions& options) {
  const int64_t tokens = options.batch_size * options.max_seq_length;
  return options.on_gpu ? NumDeviceRows(tokens) : tokens;
}

int64_t RelativeScratchBytes(const MemoryOptions& options, int64_t columns,
                             bool first_tokens_only) {
  if (!options.on_gpu || columns == 0) return 0;
  const int64_t length = options.max_seq_length;
  const OffsetSpan span = {
      .max_seqlen = length, .window = length, .first_query_only = first_tokens_only};
  const OffsetSums sums = ShapeOfOffsetSums(span, columns, QueryTiles(options.batch_size, span));
  return int64_t{sums.slots} * sums.count * columns * kFloat;
}

void CheckCountable(const MemoryOptions& options, int64_t layers, int64_t columns,
                    int64_t num_parameters) {
  const double tokens =
      static_cast<double>(options.batch_size) * static_cast<double>(options.max_seq_length);
  const double floats = tokens * static_cast<double>(columns) * static_cast<double>(layers + 1) +
                        5 * static_cast<double>(num_parameters);
  if (floats * kFloat * static_cast<double>(options.num_processes) < 9e18) return;
  throw InvalidArgument("the estimate has more bytes than can be counted",
                        "give a smaller batch, shorter texts or fewer processes");
}

PassMemory MemoryOfStack(const StackBytes& b, bool gradient_checkpointing) {
  PassMemory memory;
  const bool several = b.layers > 1;
  memory.inference = std::max(b.embeddings_forward, several ? b.forward : b.last_forward);
  if (!gradient_checkpointing) {
    memory.kept = b.embeddings + (b.layers - 1) * b.kept + b.last_kept;
    // All is kept when the last layer's backward pass runs. The layer before it may need more.
    memory.temporary = std::max(b.last_gradients, several ? b.gradients - b.freed : 0);
    return memory;
  }
  memory.kept = b.embeddings + (b.layers - 1) * b.hidden;
  // The last layer is computed again, and so is each earlier one, whose output then exists twice.
  const int64_t last = b.last_kept + b.last_gradients;
  const int64_t earlier = b.kept - b.hidden + std::max(b.gradients_of_output, b.gradients);
  memory.temporary = several ? std::max(last, earlier) : last;
  return memory;
}

StackBytes PostNormEncoderStack(const PostNormEncoderShape& shape, const MemoryOptions& options) {
  const nn::PostNormLayerOptions& layer = shape.layer;
  CheckCountable(options, shape.num_layers,
                 20 * layer.hidden_size +
                     (layer.names.gate.empty() ? 4 : 8) * layer.intermediate_size +
                     2 * layer.num_attention_heads + shape.more_columns,
                 shape.num_parameters);
  return EncoderActivations(shape, options).Stack();
}

PassMemory PostNormEncoderMemory(const PostNormEncoderShape& shape, const MemoryOptions& options,
                                 const StackBytes& stack) {
  PassMemory memory = MemoryOfStack(stack, options.gradient_checkpointing);
  memory.kept += shape.table_bytes;
  memory.inference += shape.table_bytes;
  memory.low_precision = EncoderActivations(shape, options).LowPrecisionWeights();
  memory.word_rows = shape.vocab_size;
  memory.word_columns = shape.embedding_size;
  return memory;
}

PassMemory PostNormEncoderMemory(const PostNormEncoderShape& shape, const MemoryOptions& options) {
  return PostNormEncoderMemory(shape, options, PostNormEncoderStack(shape, options));
}

}  // namespace lathe
