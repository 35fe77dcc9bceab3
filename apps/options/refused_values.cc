#include "lathe/apps/options/refused_values.h"

#include <absl/strings/str_split.h>

#include <algorithm>
#include <vector>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

constexpr std::string_view kAdamW = "pass --optim adamw_torch";
constexpr std::string_view kSaveMemory =
    "pass --optim adamw_torch; --freeze_layers saves memory, and so does --shard_optimizer with "
    "several processes";
constexpr std::string_view kFiles =
    "pass --report_to tensorboard or jsonl, and import the files there";

constexpr RefusedValue kValues[] = {
    {"optim", "adamw_apex_fused|adamw_torch_xla|adamw_torch_npu_fused",
     "it is AdamW in a library for other devices", "pass --optim adamw_torch, the same update"},
    {"optim", "paged_adamw|paged_adamw_32bit",
     "it is AdamW whose state moves between the memories of the GPU and the host",
     "pass --optim adamw_torch, the same update"},
    {"optim", "adamw_torch_4bit|adamw_torch_8bit|adamw_bnb_8bit|adamw_8bit|paged_adamw_8bit",
     "it rounds AdamW's state to few bits, which saves memory and changes the updates",
     kSaveMemory},
    {"optim", "adamw_anyprecision",
     "it keeps AdamW's state in narrow types, which saves memory and changes the updates",
     kSaveMemory},
    {"optim", "stable_adamw",
     "it clips each parameter's update by the update's own size, in place of the gradients' norm",
     "pass --optim adamw_torch with --max_grad_norm"},
    {"optim",
     "galore_adamw|galore_adamw_8bit|galore_adafactor|galore_adamw_layerwise|"
     "galore_adamw_8bit_layerwise|galore_adafactor_layerwise",
     "it updates along few directions of each matrix, which saves memory and changes the updates",
     kSaveMemory},
    {"optim", "apollo_adamw|apollo_adamw_layerwise",
     "it scales gradients by random projections, which saves memory and changes the updates",
     kSaveMemory},
    {"optim", "lomo|adalomo",
     "it updates inside the backward pass, which saves memory and leaves no norm to clip",
     kSaveMemory},
    {"optim", "ademamix|ademamix_8bit|paged_ademamix_32bit|paged_ademamix_8bit",
     "it adds a second and slower mean of the gradients to AdamW's", kAdamW},
    {"optim", "grokadamw", "it adds a slow mean of the gradients to each gradient", kAdamW},
    {"optim", "lion_8bit|lion_32bit|paged_lion_32bit|paged_lion_8bit",
     "it is Lion in a library for GPUs", "pass --optim lion, the same update in float32"},
    {"optim", "rmsprop_bnb|rmsprop_bnb_8bit|rmsprop_bnb_32bit",
     "it is RMSprop in a library for GPUs", "pass --optim rmsprop, the same update in float32"},
    {"optim", "schedule_free_radam|schedule_free_adamw|schedule_free_sgd",
     "it averages the weights in place of a rate that falls",
     "pass --optim adamw_torch or sgd with --lr_scheduler_type cosine"},
    {"lr_scheduler_type", "cosine_warmup_with_min_lr",
     "its warm-up begins above a rate of 0, unlike all others",
     "pass --lr_scheduler_type cosine_with_min_lr with --warmup_steps"},
    {"lr_scheduler_type", "greedy", "it raises and lowers the rate by the losses of single steps",
     "pass --lr_scheduler_type reduce_lr_on_plateau, which lowers it by evaluations"},
    {"report_to",
     "azure_ml|clearml|comet_ml|dagshub|flyte|kubeflow|mlflow|neptune|swanlab|trackio|wandb",
     "Lathe sends nothing to a service", kFiles},
    {"report_to", "dvclive", "Lathe writes no files of DVC", kFiles},
    {"report_to", "codecarbon", "Lathe measures no electricity",
     "leave it out; train_results.json has the time that a training takes"},
};

}  // namespace

std::span<const RefusedValue> RefusedValues() { return kValues; }

void CheckNotRefused(std::string_view option, const std::string& value, const std::string& known) {
  for (const RefusedValue& refused : kValues) {
    if (refused.option != option) continue;
    const std::vector<std::string> values = absl::StrSplit(std::string(refused.values), '|');
    if (std::ranges::find(values, value) == values.end()) continue;
    const std::string name(option);
    throw InvalidArgument(
        "--" + name + " " + value + " is not supported: " + std::string(refused.reason),
        std::string(refused.instead) + "; --" + name + " takes " + known);
  }
}

}  // namespace lathe
