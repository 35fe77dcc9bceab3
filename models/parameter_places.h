// Where the parameters of a classifier lie, from the embeddings up to the head. It is told by their
// names, which are Transformers': "bert.encoder.layer.3.output.dense.weight" lies in layer 4.
#pragma once

#include <cstdint>
#include <vector>

#include "lathe/models/sequence_classifier.h"

namespace lathe {

struct ParameterPlace {
  // 0 stands for embeddings and what is used before the first layer, and 1 to num_layers for the
  // layers. num_layers + 1 is what follows the last layer, such as a norm, a pooler and the head.
  int64_t depth = 0;
  bool in_head = false;  // belongs to no part of the encoder, which Transformers calls base_model
};

struct ParameterPlaces {
  std::vector<ParameterPlace> places;  // one for each of model.Parameters(), in their order
  int64_t num_layers = 0;              // layers with parameters of their own; ALBERT has one
};

ParameterPlaces PlacesOfParameters(const SequenceClassifier& model);

}  // namespace lathe
