// Compares the estimate with what tensors take, for families whose layers are not BERT's.
#include "lathe/apps/lathe/estimate_memory_testing.h"

namespace lathe {
namespace {

// Compares both precisions, with and without checkpoints.
void CompareAll(const nlohmann::json& config) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool checkpointing : {false, true}) {
      SCOPED_TRACE(testing::Message() << config << ToString(dtype) << " " << checkpointing);
      Compare({.batch_size = 8, .compute_dtype = dtype, .gradient_checkpointing = checkpointing},
              config);
    }
  }
}

TEST(EstimateMemory, SqueezeBert) {
  CompareAll({{"model_type", "squeezebert"}, {"embedding_size", 256}});
}

TEST(EstimateMemory, ConvBert) {
  CompareAll({{"model_type", "convbert"}, {"embedding_size", 128}});
  CompareAll({{"model_type", "convbert"}, {"embedding_size", 256}, {"num_groups", 2}});
}

TEST(EstimateMemory, MobileBert) {
  const nlohmann::json usual = {
      {"model_type", "mobilebert"}, {"intra_bottleneck_size", 64}, {"intermediate_size", 256}};
  nlohmann::json shared = usual, plain = usual;
  shared["use_bottleneck_attention"] = true;
  plain.update({{"use_bottleneck", false}, {"num_feedforward_networks", 1}});
  for (const nlohmann::json& config : {usual, shared, plain}) CompareAll(config);
}

TEST(EstimateMemory, PreNorm) {
  for (const char* type : {"megatron-bert", "roberta-prelayernorm", "xlm-roberta-xl"}) {
    CompareAll({{"model_type", type}, {"max_position_embeddings", 514}});
  }
}

// Each version, with its tables of distances, and with a convolution.
TEST(EstimateMemory, Disentangled) {
  const nlohmann::json first = {
      {"model_type", "deberta"}, {"relative_attention", true}, {"pos_att_type", "c2p|p2c"}};
  const nlohmann::json second = {{"model_type", "deberta-v2"}, {"relative_attention", true},
                                 {"pos_att_type", "c2p|p2c"},  {"position_buckets", 64},
                                 {"share_att_key", true},      {"norm_rel_ebd", "layer_norm"}};
  nlohmann::json talking = first, own = second, convolution = second;
  talking["talking_head"] = true;
  own["share_att_key"] = false;
  convolution["conv_kernel_size"] = 3;
  for (const nlohmann::json& config : {first, talking, second, own, convolution})
    CompareAll(config);
}

}  // namespace
}  // namespace lathe
