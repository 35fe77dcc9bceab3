#include "lathe/apps/lathe/estimate_memory.h"

#include <algorithm>

#include "lathe/core/base/error.h"
#include "lathe/models/bert/bert.h"

namespace lathe {
namespace {

constexpr int64_t kFloat = 4;

// The rows of a GPU's activations are a multiple of this (models/rows.cc).
constexpr int64_t kGpuRows = 128;
constexpr int64_t kGpuWorkspace = int64_t{32} << 20;  // cuBLASLt's (core/cuda/gemm.cc)

// The rows of activations. On the CPU there may be a few surplus rows, which are left out.
int64_t RowsOf(const MemoryOptions& options) {
  const int64_t tokens = options.batch_size * options.max_seq_length;
  return options.on_gpu ? (tokens + kGpuRows - 1) / kGpuRows * kGpuRows : tokens;
}

// The bytes that BERT's passes keep and need. There are T rows, one for each token, B texts, H and
// I columns and A heads; an element of an activation takes E bytes. Dropout keeps nothing, because
// its masks are computed again. The token ids are left out.
struct BertActivations {
  BertActivations(const BertModel& bert, const MemoryOptions& options)
      : layers(bert.options().num_hidden_layers),
        B(options.batch_size),
        T(RowsOf(options)),
        H(bert.hidden_size()),
        I(bert.options().layer.intermediate_size),
        A(bert.options().layer.num_attention_heads),
        E(SizeOf(options.compute_dtype)),
        hidden(T * H * E),
        inner(T * I * E),
        on_gpu(options.on_gpu) {}

  // The activations between the embeddings and the first layer.
  int64_t Embeddings() const {
    // Embedding, norm and dropout are one op here (core/ops/embedding.h).
    if (on_gpu) return 2 * T * kFloat + hidden;
    return T * H * kFloat    // the sum of the embeddings
           + 2 * T * kFloat  // its norm's mean and deviation
           + hidden;         // the input of the first layer
  }

  // The activations around the activation function. The CPU keeps only its input and computes its
  // output again.
  int64_t Inner(int64_t bytes) const { return on_gpu ? 2 * bytes : bytes; }
  // The most that the backward pass holds there beside Inner(): the gradient of the activation
  // function's input and, on the CPU, its recomputed output. On a GPU the gradient of that output
  // takes the output's place.
  int64_t InnerGradients() const { return on_gpu ? inner : 2 * inner; }

  // The activations that a layer keeps, for all tokens, including its output.
  int64_t Layer() const {
    return 3 * hidden         // query, key, value
           + hidden           // attention's result
           + T * A * kFloat   // attention's log-sums, to compute the probabilities again
           + 2 * hidden       // the sum of its output projection and x, the norm of that sum
           + Inner(inner)     // around the activation function
           + 2 * hidden       // the sum after the output projection, the norm of that sum
           + 4 * T * kFloat;  // the norms' means and deviations
  }

  // The same for the last layer. Its queries and all activations after attention exist for first
  // tokens only.
  int64_t LastLayer() const {
    const int64_t first = B * H * E;
    return 2 * hidden              // key, value
           + first                 // rows of first tokens
           + 6 * first             // query, attention, and two times sum and norm
           + Inner(B * I * E)      // around the activation function
           + (A + 4) * B * kFloat  // log-sums, means, deviations
           + 3 * B * H * kFloat;   // the head: its input, the pooler's before tanh, dropout's
  }

  int64_t Kept(bool checkpointing) const {
    return Embeddings() + LastLayer() - (checkpointing ? LastLayer() : 0) +
           (layers - 1) * (checkpointing ? hidden : Layer());
  }

  // The most that the backward pass holds beside Kept().
  int64_t BackwardPeak(bool checkpointing) const {
    // The gradients of key and value in the last layer, when all of Kept() is still there.
    const int64_t dkv = 2 * hidden;
    if (!checkpointing) {
      // The peak is in the layer before the last, at its activation function. InnerGradients() and
      // the gradients before and after the residual addition (2) come on top. Freed by then are the
      // last layer's key and value, and this layer's output and sum (4).
      return std::max(dkv, layers > 1 ? InnerGradients() + 2 * hidden - 4 * hidden : 0);
    }
    // The last layer is computed again, and its backward pass adds dkv.
    const int64_t last = LastLayer() + dkv;
    if (layers == 1) return last;
    // An earlier layer is computed again. Its output then exists twice: as kept and as recomputed.
    // Gradients of its output and of the addition (2) come on top, and those at the activation
    // function. The sum has been freed (1).
    const int64_t all = Layer() - hidden + std::max(3 * hidden, InnerGradients() + 2 * hidden);
    return std::max(last, all);
  }

  // The peak without a backward pass. It is in the second half of a layer, which holds the layer's
  // input and the norm after attention (2). First the inner activation, computed in place, and the
  // output projection join them. At the end the projection, its sum and its norm do (3). If the
  // only layer is the last one, the embeddings may be the peak.
  int64_t Forward() const {
    const int64_t embeddings = on_gpu ? hidden : 2 * T * H * kFloat + (E < kFloat ? hidden : 0);
    return std::max(embeddings, layers > 1 ? std::max(5 * hidden, 3 * hidden + inner) : 3 * hidden);
  }

  // The 16-bit copies of the weights in the layers' products.
  int64_t LowPrecisionWeights() const {
    return E < kFloat ? layers * (4 * H * H + 2 * H * I) * E : 0;
  }

  int64_t layers, B, T, H, I, A, E;
  int64_t hidden, inner;  // bytes of one [T, H] and of one [T, I]
  bool on_gpu;
};

// Throws if a sum of bytes could overflow int64_t.
void CheckCountable(const Module& model, const BertModel& bert, const MemoryOptions& options) {
  const nn::PostNormLayerOptions& layer = bert.options().layer;
  const double tokens =
      static_cast<double>(options.batch_size) * static_cast<double>(options.max_seq_length);
  const double columns = static_cast<double>(20 * layer.hidden_size + 4 * layer.intermediate_size +
                                             2 * layer.num_attention_heads) *
                         static_cast<double>(bert.options().num_hidden_layers + 1);
  const double floats = tokens * columns + 5 * static_cast<double>(model.NumParameters());
  if (floats * kFloat * static_cast<double>(options.num_processes) < 9e18) return;
  throw InvalidArgument("the estimate has more bytes than can be counted",
                        "give a smaller batch, shorter texts or fewer processes");
}

}  // namespace

MemoryEstimate EstimateMemory(const SequenceClassifier& model, const MemoryOptions& options) {
  const auto* classifier = dynamic_cast<const BertForSequenceClassification*>(&model);
  if (classifier == nullptr) {
    throw Error(absl::StatusCode::kUnimplemented,
                model.config().path() + ": the memory of \"" + model.config().model_type() +
                    "\" models can't be estimated yet",
                "train a few steps with finetune: train_results.json has peak_rss_bytes");
  }
  CheckCountable(model, classifier->bert(), options);
  const BertActivations activations(classifier->bert(), options);
  MemoryEstimate estimate;
  estimate.weights = estimate.gradients = model.NumParameters() * kFloat;
  const int64_t n = options.shard_optimizer && !options.on_gpu ? options.num_processes : 1;
  estimate.moments = 2 * ((estimate.weights + n - 1) / n);
  estimate.workspace = options.on_gpu ? kGpuWorkspace : 0;
  estimate.low_precision = activations.LowPrecisionWeights();
  estimate.kept = activations.Kept(options.gradient_checkpointing);
  estimate.temporary = activations.BackwardPeak(options.gradient_checkpointing);
  estimate.inference = activations.Forward();
  if (options.num_processes > 1 && !options.on_gpu) {  // NCCL sums gradients in place
    // The rows of the word table that any process has used, unless these are most of the rows.
    const int64_t words = classifier->config().GetInt("vocab_size", 30522);
    estimate.exchange =
        std::min(options.num_processes * activations.T, words / 2) * activations.H * kFloat;
  }
  return estimate;
}

}  // namespace lathe
