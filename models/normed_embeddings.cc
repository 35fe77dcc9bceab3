#include "lathe/models/normed_embeddings.h"

#include <algorithm>

#include "lathe/core/base/error.h"
#include "lathe/core/ops/embedding.h"

namespace lathe {

NormedEmbeddings::NormedEmbeddings(const NormedEmbeddingsOptions& options, const char* model)
    : options_(options), model_(model) {
  const int64_t H = options.hidden_size;
  const double std_dev = options.initializer_range;
  word_ = Register<nn::Embedding>("word_embeddings", options.vocab_size, H, std_dev,
                                  options.pad_token_id);
  position_ =
      Register<nn::Embedding>("position_embeddings", options.max_position_embeddings, H, std_dev);
  token_type_ =
      Register<nn::Embedding>("token_type_embeddings", options.type_vocab_size, H, std_dev);
  norm_ = Register<nn::LayerNorm>("LayerNorm", H, options.layer_norm_eps);
}

Tensor NormedEmbeddings::Forward(const Batch& batch, const nn::ForwardContext& context) const {
  const int64_t num_positions = options_.max_position_embeddings;
  Check(batch.max_seqlen <= num_positions, model_, "a sequence has ", batch.max_seqlen,
        " tokens but the model's max_position_embeddings is ", num_positions);
  const auto positions = batch.position_ids.values<int32_t>();
  const int32_t last = *std::max_element(positions.begin(), positions.end());
  Check(last < num_positions, model_, "a sequence reaches position ", last,
        " but the model's max_position_embeddings is ", num_positions);
  if (!device().is_cpu()) {  // a device's kernels don't check ids
    CheckEmbeddingIds(batch.input_ids, options_.vocab_size, 0);
    CheckEmbeddingIds(batch.token_type_ids, options_.type_vocab_size, 1);
  }
  return EmbeddingLayerNorm({context.input_ids, context.token_type_ids, context.row_positions},
                            {word_->weight, token_type_->weight, position_->weight},
                            {word_->padding_row, -1, -1}, norm_->weight, norm_->bias, norm_->eps,
                            context.Dropout(options_.hidden_dropout_prob, "embeddings"),
                            compute_dtype());
}

}  // namespace lathe
