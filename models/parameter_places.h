// Where the parameters of a classifier lie, from the embeddings up to the head. It is told by their
// names, which are Transformers': "bert.encoder.layer.3.output.dense.weight" lies in layer 4. A
// parameter without a number is told by its place among the others, which is the order of use.
#pragma once

#include <cstdint>
#include <vector>

#include "lathe/models/sequence_classifier.h"

namespace lathe {

struct ParameterPlace {
  // 0 stands for embeddings and what is used before the first layer, and 1 to num_layers for the
  // layers. A part between two layers belongs to the lower one, such as DeBERTa-v2's convolution.
  // num_layers + 1 is what follows the last layer, such as a norm, a pooler and the head.
  int64_t depth = 0;
  bool in_head = false;  // belongs to no part of the encoder, which Transformers calls base_model
};

struct ParameterPlaces {
  std::vector<ParameterPlace> places;  // one for each of model.Parameters(), in their order
  int64_t num_layers = 0;              // layers with parameters of their own; ALBERT has one
};

ParameterPlaces PlacesOfParameters(const SequenceClassifier& model);

}  // namespace lathe
