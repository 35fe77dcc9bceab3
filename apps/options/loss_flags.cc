#include "lathe/apps/options/flag_groups.h"
#include "lathe/core/base/error.h"

namespace lathe {
namespace {

void Require(bool ok, const char* message, const char* hint = "") {
  if (!ok) throw InvalidArgument(message, hint);
}

}  // namespace

void AddLossFlags(FlagTable& flags, FinetuneArguments& o) {
  flags.Group("Loss (of training and evaluation, unless it says otherwise)");
  flags
      .Add(
          "class_weights", &o.class_weights,
          "how much each class counts: none, balanced (by how rare it is in the training data), or "
          "weights such as a=2,b=0.5. Weights may be an object of JSON, or a .json file with one. "
          "With several labels at once, they are for rows that have the label")
      .ValueName("WEIGHTS")
      .TakesJson();
  flags
      .Add("sample_weight_column", &o.sample_weight_column,
           "column of --train_file, by name or number, with a number from 0 on: how much the row "
           "counts in training")
      .ValueName("NAME");
  flags
      .Add("label_smoothing_factor", &o.label_smoothing_factor,
           "share of each label that is spread evenly over all classes")
      .Min(0)
      .Max(1);
  flags
      .Add("focal_gamma", &o.focal_gamma,
           "exponent of the focal loss, by which rows that the model is sure of count less; 0: all "
           "count alike")
      .Min(0)
      .Max(100);
}

void AddTrainedFlags(FlagTable& flags, FinetuneArguments& o) {
  flags.Group("What is trained");
  flags
      .Add("freeze_layers", &o.freeze_layers,
           "parameters that stay as they are: N (the embeddings and the first N layers), "
           "embeddings (all that is used before the first layer), encoder (all but the head), or a "
           "regular expression for their names")
      .ValueName("WHICH");
  flags
      .Add("head_learning_rate", &o.head_learning_rate,
           "peak learning rate of the head, which is all but the encoder; 0: --learning_rate")
      .Min(0);
  flags
      .Add("layerwise_lr_decay", &o.layerwise_lr_decay,
           "factor by which each layer's learning rate is lower than that of the layer above; the "
           "embeddings come below the first layer")
      .Min(0)
      .Max(1);
}

void ValidateLoss(const FinetuneArguments& o) {
  Require(o.do_train || o.class_weights != "balanced", "--class_weights balanced needs --do_train",
          "it counts the labels of the training data; without them, write LABEL=WEIGHT");
  Require(o.sample_weight_column.empty() || o.sample_weight_column != o.label_column,
          "--sample_weight_column and --label_column name the same column");
}

}  // namespace lathe
