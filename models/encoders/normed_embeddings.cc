#include "lathe/models/encoders/normed_embeddings.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/embedding.h"
#include "lathe/core/ops/segment/token_positions.h"

namespace lathe {

NormedEmbeddings::NormedEmbeddings(const NormedEmbeddingsOptions& options, const char* model)
    : options_(options), model_(model) {
  const int64_t H = options.hidden_size;
  const double std_dev = options.initializer_range;
  word_ = Register<nn::Embedding>(
      options.word, options.vocab_size, H,
      options.word_init.value_or(Init::Normal(std_dev, options.pad_token_id)),
      options.pad_token_id);
  if (options.has_positions) {
    const int64_t padding_row = options.first_position > 0 ? options.first_position - 1 : -1;
    position_ = Register<nn::Embedding>(
        "position_embeddings", options.max_position_embeddings, H,
        options.position_init.value_or(Init::Normal(std_dev, padding_row)), padding_row);
    if (!options.adds_positions) position_->weight.SetRequiresGrad(false);
  }
  if (options.type_vocab_size > 0) {
    token_type_ = Register<nn::Embedding>(options.types, options.type_vocab_size, H, std_dev);
  }
  if (options.task_type_vocab_size > 0) {
    task_type_ =
        Register<nn::Embedding>("task_type_embeddings", options.task_type_vocab_size, H, std_dev);
  }
  if (options.has_norm) {
    norm_ = Register<nn::LayerNorm>(options.norm, H, options.layer_norm_eps, options.norm_has_bias);
  }
}

Tensor NormedEmbeddings::PositionRows(const nn::ForwardContext& context) const {
  if (options_.first_position == 0) return context.row_positions;
  return TokenPositions(context.input_ids, context.row_positions, context.sequences.cu_seqlens,
                        static_cast<int32_t>(options_.first_position - 1));
}

Tensor NormedEmbeddings::Forward(const Batch& batch, const nn::ForwardContext& context) const {
  // Messages name the number of the table's rows. If the first rows belong to no position, they
  // also name the number of positions.
  const int64_t num_positions = max_length();
  const auto table = [&] {
    std::string text =
        absl::StrCat("the model's max_position_embeddings is ", options_.max_position_embeddings);
    if (options_.first_position == 0) return text;
    return absl::StrCat(text, ", of which ", num_positions, " are for tokens");
  };
  Check(batch.max_seqlen <= num_positions, model_, "a sequence has ", batch.max_seqlen,
        " tokens but ", table());
  const auto positions = batch.position_ids.values<int32_t>();
  const int32_t last = *std::max_element(positions.begin(), positions.end());
  Check(last < num_positions, model_, "a sequence reaches position ", last, " but ", table());
  if (!device().is_cpu()) {  // a device's kernels don't check ids
    CheckEmbeddingIds(batch.input_ids, options_.vocab_size, 0);
    if (token_type_ != nullptr) {
      CheckEmbeddingIds(batch.token_type_ids, options_.type_vocab_size, 1);
    }
  }
  std::vector<Tensor> ids, tables;
  std::vector<int64_t> padding_rows;
  const auto add = [&](const Tensor& rows, const nn::Embedding& embedding) {
    ids.push_back(rows);
    tables.push_back(embedding.weight);
    padding_rows.push_back(embedding.padding_row);
  };
  add(context.input_ids, *word_);
  if (token_type_ != nullptr) add(context.token_type_ids, *token_type_);
  if (position_ != nullptr && options_.adds_positions) add(PositionRows(context), *position_);
  if (task_type_ != nullptr) {
    add(Tensor::Zeros(context.input_ids.shape(), DType::kI32, context.input_ids.device()),
        *task_type_);
  }
  const DropoutSpec dropout = context.Dropout(options_.hidden_dropout_prob, "embeddings");
  const DType dtype = options_.in_float32 ? DType::kF32 : compute_dtype();
  if (norm_ == nullptr) {
    return Cast(Dropout(EmbeddingSum(ids, tables, padding_rows), dropout), dtype);
  }
  return EmbeddingLayerNorm(ids, tables, padding_rows, norm_->weight, norm_->bias, norm_->eps,
                            dropout, dtype);
}

}  // namespace lathe
