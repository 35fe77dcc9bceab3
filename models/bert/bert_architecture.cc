// What the rest of the program knows of BERT.
#include "lathe/models/architecture.h"
#include "lathe/models/bert/bert.h"
#include "lathe/models/bert/bert_memory.h"

namespace lathe {
namespace {

const ArchitectureRegistration kBert({
    .model_type = "bert",
    .class_name = "BertForSequenceClassification",
    .make = MakeClassifier<BertForSequenceClassification>,
    .names = {.base_prefix = "bert."},
    .config_defaults = BertConfigDefaults(),
    .dropout_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"},
    .pass_memory = BertPassMemory,
});

}  // namespace
}  // namespace lathe
