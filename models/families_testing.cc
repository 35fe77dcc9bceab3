#include "lathe/models/families_testing.h"

namespace lathe {

using Json = nlohmann::json;

Json TinyConfig() {
  return {{"vocab_size", 30},           {"hidden_size", 8},
          {"num_hidden_layers", 2},     {"num_attention_heads", 2},
          {"intermediate_size", 12},    {"max_position_embeddings", 16},
          {"hidden_dropout_prob", 0.2}, {"attention_probs_dropout_prob", 0.1}};
}

Json With(Json config, const Json& changes) {
  config.update(changes);
  return config;
}

// It is long because it is a table: one row for each family.
std::vector<Family> Families() {
  const Json tiny = TinyConfig();
  const Json offset = With(tiny, {{"max_position_embeddings", 18}, {"type_vocab_size", 1}});
  return {
      {"albert", With(tiny, {{"embedding_size", 6},
                             {"num_hidden_layers", 4},
                             {"num_hidden_groups", 2},
                             {"inner_group_num", 2}})},
      {"bert", tiny},
      {"camembert", offset},
      {"convbert", With(tiny, {{"embedding_size", 6}, {"conv_kernel_size", 3}})},
      {"data2vec-text", offset},
      {"deberta", With(tiny, {{"relative_attention", true},
                              {"pos_att_type", "c2p|p2c"},
                              {"position_biased_input", false}})},
      {"deberta-v2", With(tiny, {{"relative_attention", true},
                                 {"pos_att_type", {"p2c", "c2p"}},
                                 {"position_buckets", 4},
                                 {"share_att_key", true},
                                 {"norm_rel_ebd", "layer_norm"},
                                 {"position_biased_input", false},
                                 {"embedding_size", 6}})},
      {"distilbert",
       {{"vocab_size", 30},
        {"dim", 8},
        {"n_layers", 2},
        {"n_heads", 2},
        {"hidden_dim", 12},
        {"dropout", 0.2},
        {"max_position_embeddings", 16}},
       "dim",
       "n_heads",
       "activation",
       "dropout"},
      {"electra", With(tiny, {{"embedding_size", 6}})},
      {"ernie", With(tiny, {{"use_task_id", true}})},
      {"eurobert",
       {{"vocab_size", 30},
        {"pad_token_id", 0},
        {"hidden_size", 8},
        {"num_hidden_layers", 2},
        {"num_attention_heads", 2},
        {"num_key_value_heads", 1},
        {"intermediate_size", 12},
        {"max_position_embeddings", 16},
        {"attention_dropout", 0.2}},
       "hidden_size",
       "num_attention_heads",
       "hidden_act",
       "attention_dropout",
       16,
       "layernorm.weight",
       "embed_tokens.weight"},
      {"megatron-bert", tiny, "hidden_size", "num_attention_heads", "hidden_act",
       "hidden_dropout_prob", 16, "ln.bias"},
      {"mobilebert",
       With(tiny, {{"hidden_size", 12}, {"intra_bottleneck_size", 8}, {"embedding_size", 6}}),
       "intra_bottleneck_size"},
      {"modernbert",
       {{"vocab_size", 30},
        {"pad_token_id", 0},
        {"hidden_size", 8},
        {"num_hidden_layers", 4},
        {"num_attention_heads", 2},
        {"intermediate_size", 12},
        {"max_position_embeddings", 16},
        {"local_attention", 4},
        {"attention_dropout", 0.1},
        {"embedding_dropout", 0.1},
        {"mlp_dropout", 0.2},
        {"classifier_dropout", 0.1}},
       "hidden_size",
       "num_attention_heads",
       "hidden_activation",
       "mlp_dropout",
       16,
       "norm.weight",
       "tok_embeddings.weight"},
      {"mpnet", With(tiny, {{"max_position_embeddings", 18}})},
      {"nomic_bert", tiny, "hidden_size", "num_attention_heads", "hidden_act",
       "hidden_dropout_prob", 16, "norm1.bias"},
      {"rembert", With(tiny, {{"input_embedding_size", 6}})},
      {"roberta", offset},
      {"roberta-prelayernorm", offset},
      {"roformer", With(tiny, {{"embedding_size", 6}})},
      {"squeezebert", With(tiny, {{"embedding_size", 8}, {"k_groups", 2}})},
      {"xlm-roberta", offset},
      {"xlm-roberta-xl", offset},
  };
}

std::vector<Family> RareParts() {
  const auto changed = [](const std::string& model_type, const Json& changes) {
    for (Family family : Families()) {
      if (family.model_type != model_type) continue;
      family.config.update(changes);
      return family;
    }
    return Family();
  };
  // Talking heads of usual fresh weights see next to nothing of the distances.
  return {changed("deberta", {{"talking_head", true}, {"initializer_range", 0.3}}),
          changed("deberta-v2", {{"conv_kernel_size", 3}, {"conv_groups", 2}})};
}

}  // namespace lathe
