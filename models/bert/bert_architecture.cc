// What the rest of the program knows of BERT.
#include "lathe/models/architecture.h"
#include "lathe/models/bert/bert.h"

namespace lathe {
namespace {

PassMemory Memory(const SequenceClassifier& model, const MemoryOptions& options) {
  const ConfigReader reader(model.config(), BertConfigDefaults());
  return PostNormEncoderMemory(model, ReadPostNormEncoderOptions(reader), options);
}

const ArchitectureRegistration kBert({
    .model_type = "bert",
    .class_name = "BertForSequenceClassification",
    .make = MakeClassifier<BertForSequenceClassification>,
    .names = {.base_prefix = "bert."},
    .config_defaults = BertConfigDefaults(),
    .dropout_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"},
    .pass_memory = Memory,
});

}  // namespace
}  // namespace lathe
