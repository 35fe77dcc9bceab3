#include "lathe/models/bert/bert_memory.h"

#include "lathe/models/bert/bert.h"

namespace lathe {

PassMemory BertPassMemory(const SequenceClassifier& model, const MemoryOptions& options) {
  const BertOptions bert = BertOptions::FromConfig(model.config());
  return PostNormEncoderMemory(
      {.layer = bert.layer,
       .num_layers = bert.num_hidden_layers,
       .vocab_size = bert.embeddings.vocab_size,
       .num_parameters = model.NumParameters(),
       // The head keeps its input, the pooler's product before tanh, and dropout's result.
       .head_columns = 3 * bert.layer.hidden_size},
      options);
}

}  // namespace lathe
