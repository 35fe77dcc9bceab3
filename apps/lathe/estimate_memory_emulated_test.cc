// Compares the estimate with what tensors take on a device, here the emulated one.
#include "lathe/apps/lathe/estimate_memory_testing.h"

namespace lathe {
namespace {

const nlohmann::json kSmall = {{"hidden_size", 128}, {"intermediate_size", 512}};

TEST(EstimateMemoryOnDevice, EachPrecision) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Compare({.batch_size = 12, .max_seq_length = 32, .compute_dtype = dtype, .on_gpu = true},
            kSmall);
  }
}

TEST(EstimateMemoryOnDevice, GradientCheckpointing) {
  Compare({.batch_size = 12,
           .max_seq_length = 32,
           .compute_dtype = DType::kBF16,
           .gradient_checkpointing = true,
           .on_gpu = true},
          kSmall);
}

// The estimate counts the rows that are filled up: 300 tokens take 384 rows.
TEST(EstimateMemoryOnDevice, RowsAreFilledUp) {
  Compare({.batch_size = 10, .max_seq_length = 30, .on_gpu = true}, kSmall);
}

void CompareOthers(nlohmann::json config, DType dtype, bool checkpointing) {
  config.update({{"hidden_size", 64}, {"intermediate_size", 256}});
  SCOPED_TRACE(testing::Message() << config << ToString(dtype) << " " << checkpointing);
  Compare({.batch_size = 8,
           .max_seq_length = 32,
           .compute_dtype = dtype,
           .gradient_checkpointing = checkpointing,
           .on_gpu = true},
          config);
}

// Other families count what a GPU keeps for themselves.
TEST(EstimateMemoryOnDevice, OtherFamilies) {
  const nlohmann::json megatron = {{"model_type", "megatron-bert"}},
                       pre_norm = {{"model_type", "roberta-prelayernorm"}},
                       xlm = {{"model_type", "xlm-roberta-xl"}},
                       squeezed = {{"model_type", "squeezebert"}, {"embedding_size", 64}},
                       conv = {{"model_type", "convbert"}, {"embedding_size", 64}},
                       mobile = {{"model_type", "mobilebert"}, {"intra_bottleneck_size", 32}},
                       deberta = {{"model_type", "deberta-v2"}, {"conv_kernel_size", 3}};
  for (nlohmann::json config : {megatron, pre_norm, xlm, squeezed, conv, mobile, deberta}) {
    config["num_hidden_layers"] = 2;
    CompareOthers(config, DType::kF32, false);
    CompareOthers(config, DType::kBF16, true);
  }
}

// A GPU sums the gradients of tables of relative positions in memory of its own.
TEST(EstimateMemoryOnDevice, RelativePositions) {
  const nlohmann::json bert = {{"position_embedding_type", "relative_key_query"},
                               {"max_position_embeddings", 32}},
                       first = {{"model_type", "deberta"},
                                {"relative_attention", true},
                                {"pos_att_type", "c2p|p2c"}};
  nlohmann::json second = first, talking = first;
  second.update({{"model_type", "deberta-v2"}, {"position_buckets", 16}, {"share_att_key", true}});
  talking.update({{"talking_head", true}, {"num_attention_heads", 2}});
  for (nlohmann::json config : {bert, first, second, talking}) {
    config["num_hidden_layers"] = 2;
    CompareOthers(config, DType::kF32, true);
    CompareOthers(config, DType::kBF16, false);
  }
}

TEST(EstimateMemoryOnDevice, RotaryPositions) {
  for (const char* type : {"roformer", "nomic_bert", "eurobert", "modernbert"}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(type);
      nlohmann::json config = kSmall;
      config.update(
          {{"model_type", type}, {"max_position_embeddings", 64}, {"num_hidden_layers", 2}});
      Compare({.batch_size = 12, .max_seq_length = 32, .compute_dtype = dtype, .on_gpu = true},
              config);
    }
  }
}

}  // namespace
}  // namespace lathe
