#include <absl/strings/str_join.h>

#include "lathe/apps/options/flag_groups.h"
#include "lathe/apps/options/refused_values.h"
#include "lathe/optim/schedules.h"
#include "lathe/train/support/optimizer_arguments.h"

namespace lathe {
namespace {

// Returns the check of a text that must be one of these names (FlagTable::Flag::check).
auto NotRefused(const char* option, const std::vector<std::string>& names) {
  return [option, known = absl::StrJoin(names, ", ")](const std::string& value) {
    CheckNotRefused(option, value, known);
  };
}

}  // namespace

// It is long because it is a table: one statement for each flag.
void AddTrainingFlags(FlagTable& flags, FinetuneArguments& o, DropInInputs& inputs) {
  flags.Group("Training");
  flags
      .Add("per_device_train_batch_size", &o.per_device_train_batch_size,
           "samples in a training batch of each process")
      .Min(1)
      .Max(kMostSamples);
  flags
      .Add("per_device_eval_batch_size", &o.per_device_eval_batch_size,
           "samples in an evaluation batch of each process")
      .Min(1)
      .Max(kMostSamples);
  flags
      .Add("gradient_accumulation_steps", &o.gradient_accumulation_steps,
           "batches whose gradients make one optimizer step")
      .Min(1)
      .Max(kMostSamples);
  flags.Add("num_train_epochs", &o.num_train_epochs, "passes over the training data")
      .Min(0)
      .Max(kMostEpochs);
  flags
      .Add("max_steps", &o.max_steps,
           "number of optimizer steps; if above 0, it replaces --num_train_epochs")
      .Min(-1)
      .Max(kMostSteps);
  flags.Add("learning_rate", &o.learning_rate, "peak learning rate").Min(0);
  flags
      .Add("weight_decay", &o.weight_decay,
           "weight decay of all parameters except biases and normalization layers")
      .Min(0);
  flags.Add("optim", &o.optim, "optimizer: PyTorch's AdamW under three names, or another one")
      .Choices(OptimizerNames())
      .CheckedBy(NotRefused("optim", OptimizerNames()));
  flags
      .Add("optim_args", &o.optim_args,
           "options of --optim sgd, rmsprop, adagrad or lion, as in momentum=0.9,nesterov=true")
      .ValueName("A=B,C=D");
  flags.Add("adam_beta1", &o.adam_beta1, "AdamW's decay rate of the first moment").Min(0).Max(1);
  flags.Add("adam_beta2", &o.adam_beta2, "AdamW's decay rate of the second moment").Min(0).Max(1);
  flags.Add("adam_epsilon", &o.adam_epsilon, "AdamW's epsilon").Min(0);
  flags.Add("max_grad_norm", &o.max_grad_norm, "clip the gradients to this norm; 0: no clipping")
      .Min(0);
  flags.Add("lr_scheduler_type", &o.lr_scheduler_type, "learning-rate schedule")
      .Choices(ScheduleNames())
      .CheckedBy(NotRefused("lr_scheduler_type", ScheduleNames()));
  flags
      .Add("lr_scheduler_kwargs", &o.lr_scheduler_kwargs,
           "options of the schedule, such as '{\"min_lr\":1e-6}' for cosine_with_min_lr")
      .ValueName("JSON")
      .TakesJson();
  flags
      .Add("warmup_steps", &inputs.warmup_steps,
           "number of steps in which the learning rate rises from 0; below 1: a share of all steps")
      .Min(0)
      .Max(kMostSteps);
  flags
      .Add("warmup_ratio", &o.warmup_ratio,
           "--warmup_steps as a share of all steps, from 0 to 1; used if --warmup_steps is 0")
      .Min(0)
      .Max(1);
  flags
      .Add(
          "device", &o.device,
          "what computes: auto (GPUs if there is one for each process, else the CPU), cpu, cuda (a "
          "GPU for each process) or cuda:NUMBER")
      .ValueName("NAME");
  flags.Add(
      "cuda_graphs", &o.cuda_graphs,
      "on a GPU, record the training passes once for all batches of similar shape and repeat the "
      "recording");
  flags
      .Add("mixed_precision", &o.mixed_precision,
           "precision of activations and products: bf16 is bfloat16, fp16 is float16 with loss "
           "scaling, on GPUs only; everything else is float32")
      .Choices({"no", "bf16", "fp16"});
  flags.Add("bf16", &o.bf16, "short for --mixed_precision bf16");
  flags.Add("fp16", &o.fp16, "short for --mixed_precision fp16");
  flags
      .Add("fp16_init_scale", &o.fp16_init_scale,
           "first loss scale of fp16, which then adapts itself")
      .Min(1e-4)
      .Max(1e38);
  flags.Add(
      "gradient_checkpointing", &o.gradient_checkpointing,
      "keep fewer activations for the backward pass and compute the others again; saves memory, "
      "takes time");
  flags.Add(
      "deterministic", &o.deterministic,
      "compute the same bits in every run on a GPU, too, whatever LATHE_TUNE says; on the CPU "
      "this is always so");
  flags.Add("shuffle_train", &o.shuffle_train, "shuffle the samples anew in each epoch");
  flags.Add("group_by_length", &o.group_by_length, "make batches of texts of similar length");
  flags.Add("dataloader_drop_last", &o.dataloader_drop_last, "leave out an incomplete last batch");
  flags.Add("seed", &o.seed, "seed of fresh weights, dropout and the order of samples").Min(0);
  flags.Add("data_seed", &o.data_seed, "seed of the order of samples (default: --seed)").Min(0);
}

}  // namespace lathe
