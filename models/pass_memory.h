// The memory that a model's forward and backward passes take, worked out from its configuration.
// `lathe estimate-memory` asks each family for it (architecture.h).
#pragma once

#include <cstdint>

#include "lathe/core/base/dtype.h"
#include "lathe/nn/post_norm_layer.h"

namespace lathe {

struct MemoryOptions {
  int64_t batch_size = 8;        // texts in a batch of one rank
  int64_t max_seq_length = 128;  // tokens of each text
  DType compute_dtype = DType::kF32;
  bool gradient_checkpointing = false;
  bool on_gpu = false;
  int64_t num_processes = 1;
  // Means the same as in AcceleratorOptions. The estimate is for ranks on one machine: on
  // several machines, all moments but those of the word table are divided among the ranks.
  bool shard_optimizer = true;
};

// Returns the rows of activations. On the CPU there may be a few surplus rows, which are left out.
int64_t NumPassRows(const MemoryOptions& options);

// Returns the bytes in which a GPU sums the gradients of attention's tables of relative positions,
// during a layer's backward pass. `columns` are those of all tables with gradients.
int64_t RelativeScratchBytes(const MemoryOptions& options, int64_t columns, bool first_tokens_only);

// The bytes of tensors that the passes take on one rank, besides parameters and gradients.
struct PassMemory {
  int64_t low_precision = 0;  // copies of weights in the compute dtype
  int64_t kept = 0;           // activations kept for the backward pass
  int64_t temporary = 0;      // the most that the backward pass holds beside them
  int64_t inference = 0;      // the most activations at a time without a backward pass
  // The word table's shape. Processes exchange the rows of its gradient that they used.
  int64_t word_rows = 0, word_columns = 0;
};

// The bytes of activations that the parts of an encoder under a classifier keep and need. A family
// counts those of its layers, and MemoryOfStack works out the whole.
struct StackBytes {
  int64_t layers = 0;
  int64_t hidden = 0;              // of a hidden state between two layers
  int64_t embeddings = 0;          // kept by the embeddings, with what enters the first layer
  int64_t embeddings_forward = 0;  // the most that they hold without a backward pass
  int64_t kept = 0;                // by a layer, for all tokens, with its output
  // The most that a layer's backward pass holds beside `kept`. When it does, `freed` bytes of
  // `kept`, and of what the last layer keeps, are free again.
  int64_t gradients = 0, freed = 0;
  // The least that it holds beside `kept` if the layer was computed again, with its output twice.
  int64_t gradients_of_output = 0;
  // The same for the last layer, which computes first tokens, with the head.
  int64_t last_kept = 0, last_gradients = 0;
  int64_t forward = 0, last_forward = 0;  // the most that a layer holds without a backward pass
};

// Sets the bytes of activations. Copies of weights and the word table's shape are the caller's.
PassMemory MemoryOfStack(const StackBytes& bytes, bool gradient_checkpointing);

// Throws if a sum of bytes could overflow. The sum is that of `layers` layers that hold up to
// `columns` float32 numbers for each token, in a model of so many parameters.
void CheckCountable(const MemoryOptions& options, int64_t layers, int64_t columns,
                    int64_t num_parameters);

// The shape of an encoder with NormedEmbeddings and PostNormLayers, under a classifier that reads
// first tokens.
struct PostNormEncoderShape {
  nn::PostNormLayerOptions layer;
  int64_t num_layers = 0;
  int64_t num_different_layers = 0;  // layers with weights of their own
  int64_t vocab_size = 0;
  int64_t embedding_size = 0;  // columns of the embeddings
  // True if a linear layer follows the embeddings even if these have the layers' columns.
  bool always_projects = false;
  // True if the feed-forward block keeps the activation function's output on the CPU, too, where
  // FeedForward computes it again (core/ops/linear.h).
  bool keeps_activated = false;
  int64_t layer_weights = 0;     // elements of the matrices of a layer's products; 0: those of BERT
  int64_t more_columns = 0;      // columns of what else a layer may hold, so that no sum overflows
  int64_t relative_columns = 0;  // of tables of relative positions that layers share
  int64_t num_parameters = 0;    // elements, with the head
  int64_t table_bytes = 0;       // of rotary positions that are no parameters
  int64_t head_columns = 0;  // float32 elements that the head keeps for a sequence's backward pass
};

// Returns what the passes of such a model take. Throws if a sum of bytes could overflow.
PassMemory PostNormEncoderMemory(const PostNormEncoderShape& shape, const MemoryOptions& options);

// The same in two steps, for layers that differ from a PostNormLayer in what they keep.
StackBytes PostNormEncoderStack(const PostNormEncoderShape& shape, const MemoryOptions& options);
PassMemory PostNormEncoderMemory(const PostNormEncoderShape& shape, const MemoryOptions& options,
                                 const StackBytes& stack);

}  // namespace lathe
