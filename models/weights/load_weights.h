// Reads a checkpoint's weights into a module, and writes a module's weights.
//
//   Model model;                                          // parameters "bert.dense.weight", ...
//   LoadReport report = LoadWeights(model, dir, {.base_prefix = "bert."});
//   SaveWeights(model, out_dir);
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lathe/nn/module.h"

namespace lathe {

// The names that tensors have in a family's checkpoints, where they differ from the parameters'
// paths or belong to no parameter. The defaults suit the encoders of Transformers.
struct CheckpointNames {
  // The prefix of the encoder's tensors, e.g. "bert.". A file with a bare encoder lacks it.
  std::string base_prefix = {};
  // The prefixes of the head's parameters. A pretrained checkpoint is expected to lack them.
  std::vector<std::string> head_prefixes = {"classifier."};
  // Endings of old names, and the endings that replace them. Checkpoints that were converted from
  // TensorFlow call a norm's weight and bias gamma and beta.
  std::vector<std::pair<std::string, std::string>> renamed_endings = {
      {"LayerNorm.gamma", "LayerNorm.weight"}, {"LayerNorm.beta", "LayerNorm.bias"}};
  // The prefixes of pre-training heads. A classifier is expected not to use them.
  std::vector<std::string> pretraining_heads = {"cls.predictions.",
                                                "cls.seq_relationship.",
                                                "lm_head.",
                                                "vocab_transform.",
                                                "vocab_layer_norm.",
                                                "vocab_projector.",
                                                "mask_predictions.",
                                                "discriminator_predictions.",
                                                "generator_predictions.",
                                                "generator_lm_head.",
                                                "predictions.",
                                                "sop_classifier.",
                                                "lm_predictions.",
                                                "decoder."};
  // The last parts of the names of buffers, which a model computes itself.
  std::vector<std::string> buffers = {"position_ids", "token_type_ids", "rotary_emb.inv_freq"};
};

struct LoadWeightsOptions {
  bool ignore_mismatched_sizes = false;
  uint64_t seed = 42;  // seed of fresh values
};

// The detail (Error::detail) of an error that ignore_mismatched_sizes would avoid.
struct MismatchedSize {
  std::string parameter;
};

// The result of a load. Names are parameter paths.
struct LoadReport {
  std::vector<std::string> loaded;
  std::vector<std::string> fresh_head;  // parameters of the head that the file lacks: expected
  std::vector<std::string> missing;     // other parameters that the file lacks
  // Tensors of pre-training heads in the file, and of a pooler that the model lacks: expected.
  std::vector<std::string> unused_pretraining;
  std::vector<std::string> unused_buffers;  // buffers in the file: expected
  std::vector<std::string> unexpected;      // other tensors in the file
  std::vector<std::string>
      mismatched;  // "name: file has [3, 8], model [2, 8]", fresh values instead
  // What a training program has put before the model's names in the file, such as "module."; or "".
  std::string wrapper;
  // Returns a few lines for people. Empty if every parameter was found under its own name and no
  // weight is left over.
  std::string Summary() const;
};

// Fills `module` from the folder's weights (find_weights.h). Old names get their new endings. A
// wrapper (DataParallel, torch.compile, Lightning, a training checkpoint) puts its own name before
// those of the model. It is left out if more names are then the model's. Tensors beside it, such as
// those of a metric, are unexpected ones, unless they have the path of a parameter that it lacks.
// If no tensor's name starts with the base prefix after that, the file holds a bare encoder, whose
// names get the prefix. Missing parameters get fresh values; missing ones outside the head are
// reported. Values are read straight into the module's arena. Throws InvalidArgument if no tensor
// is the model's, or if two wrappers hold as much of it.
LoadReport LoadWeights(Module& module, const std::string& dir, const CheckpointNames& names,
                       const LoadWeightsOptions& options = {});

// Writes model.safetensors (all parameters by path) atomically.
void SaveWeights(const Module& module, const std::string& dir);

}  // namespace lathe
