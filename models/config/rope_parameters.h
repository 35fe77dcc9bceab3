// Reads from config.json how a model's rotary positions grow: "rope_parameters" as Transformers has
// it since version 5, or the older keys "rope_theta" and "rope_scaling".
//
//   {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
//   {"rope_parameters": {"full_attention": {"rope_theta": 160000.0}, "sliding_attention": {...}}}
//   {"rope_theta": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lathe/models/config/config.h"

namespace lathe {

struct RopeKeys {
  double default_theta = 10000;
  std::string theta = "rope_theta";  // the older key
  // The kind of layers whose parameters are wanted, if a model has several kinds; empty otherwise.
  // Parameters that are not divided by kinds count for all.
  std::string layer_type = "";
};

// As in Transformers, "rope_scaling" takes the place of "rope_parameters" if a config has both. In
// a family with kinds of layers it is added to each kind's. Returns the frequency of each pair of a
// head's columns (RotaryFrequencies in core/ops/rotary/rotary_embedding.h), divided by the factor
// of a "linear" rope_type. Throws `path: ...` for rope types that Lathe doesn't have, and for
// values that can't be meant. These are a theta that is not positive, a factor below 1 and a
// partial_rotary_factor other than 1. Kinds of layers can't be meant if layer_type is empty.
// head_dim is even.
std::vector<float> ReadRotaryFrequencies(const PretrainedConfig& config, int64_t head_dim,
                                         const RopeKeys& keys);

}  // namespace lathe
