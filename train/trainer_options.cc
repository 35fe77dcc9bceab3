#include "lathe/train/trainer_options.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/train/loss_options.h"
#include "lathe/train/parameters/trained_parameters.h"
#include "lathe/train/support/optimizer_arguments.h"
#include "lathe/train/support/run_errors.h"
#include "lathe/train/support/schedule_kwargs.h"

namespace lathe {
namespace {

std::string PrecisionOf(const TrainingArguments& arguments) {
  if (arguments.bf16 && arguments.fp16) {
    throw InvalidArgument("bf16 and fp16 contradict each other", "leave one of them out");
  }
  return arguments.bf16 ? "bf16" : arguments.fp16 ? "fp16" : arguments.mixed_precision;
}

ScheduleOptions MakeScheduleOptions(const TrainingArguments& options, int64_t max_steps) {
  ScheduleOptions schedule =
      ParseScheduleKwargs(options.lr_scheduler_type, options.lr_scheduler_kwargs);
  schedule.num_training_steps = max_steps;
  schedule.num_warmup_steps = NumWarmupSteps(options, max_steps);
  return schedule;
}

}  // namespace

AcceleratorOptions AcceleratorOptionsOf(const TrainingArguments& arguments) {
  return {.gradient_accumulation_steps = arguments.gradient_accumulation_steps,
          .mixed_precision = PrecisionOf(arguments),
          .grad_scaler = {.init_scale = arguments.fp16_init_scale},
          .device = arguments.device == "auto" ? "" : arguments.device,
          .timeout = std::chrono::milliseconds(static_cast<int64_t>(arguments.ddp_timeout * 1000)),
          .shard_optimizer = ShardsOptimizer(arguments),
          .share_parameters = arguments.share_parameters,
          .step_graphs = arguments.cuda_graphs,
          .deterministic = arguments.deterministic};
}

TrainingArguments CompletedArguments(TrainingArguments arguments) {
  arguments.do_train = true;
  CompleteTrainingArguments(arguments);
  return arguments;
}

TrainerInputs CheckedInputs(TrainerInputs inputs, const TrainingArguments& arguments) {
  Check(inputs.model != nullptr, "trainer", "there is no model");
  Check(inputs.train != nullptr && inputs.train->size() > 0, "trainer", inputs.train_name,
        " must have samples");
  Check(inputs.train->has_labels, "trainer", inputs.train_name, " must have labels");
  Check(inputs.evaluation == nullptr || inputs.evaluation->has_labels, "trainer",
        "the evaluation data must have labels");
  const std::vector<float>& weights = inputs.train->sample_weights;
  const bool valid =
      std::ranges::all_of(weights, [](float w) { return w >= 0 && std::isfinite(w); });
  const bool some = weights.empty() || std::ranges::any_of(weights, [](float w) { return w > 0; });
  if (!valid || !some) {
    throw InvalidArgument(
        inputs.train_name +
            (valid ? ": all sample weights are 0" : ": a sample weight is not a number from 0"),
        "name another column with " + OptionName("sample_weight_column") + " or leave it out");
  }
  Check(arguments.eval_strategy == "no" || inputs.evaluation != nullptr, "trainer",
        "eval_strategy ", arguments.eval_strategy, " needs evaluation data");
  return inputs;
}

SequenceClassifier& PreparedModel(const TrainerInputs& inputs, const TrainingArguments& arguments,
                                  Device device) {
  SequenceClassifier& model = *inputs.model;
  model.set_loss_options(LossOptionsOf(arguments, model.config().label_names(), inputs.train->kind,
                                       inputs.train.get(), device));
  FreezeParameters(model, arguments);
  return model;
}

void CheckAccelerator(const Accelerator& accelerator, const TrainingArguments& arguments) {
  constexpr char kHint[] = "make the Accelerator with AcceleratorOptionsOf(arguments)";
  if (accelerator.gradient_accumulation_steps() != arguments.gradient_accumulation_steps) {
    throw InvalidArgument("gradient_accumulation_steps is " +
                              std::to_string(arguments.gradient_accumulation_steps) +
                              " but the Accelerator's is " +
                              std::to_string(accelerator.gradient_accumulation_steps()),
                          kHint);
  }
  if (accelerator.mixed_precision() != PrecisionOf(arguments)) {
    throw InvalidArgument("mixed_precision is " + PrecisionOf(arguments) +
                              " but the Accelerator's is " + accelerator.mixed_precision(),
                          kHint);
  }
}

DataLoaderOptions LoaderOptionsOf(const TrainingArguments& options, const TrainerInputs& inputs,
                                  int num_processes) {
  const int64_t batch_size = options.per_device_train_batch_size * num_processes;
  if (options.dataloader_drop_last && inputs.train->size() < batch_size) {
    throw InvalidArgument(
        inputs.train_name + ": " + std::to_string(inputs.train->size()) +
            (inputs.train->size() == 1 ? " sample does" : " samples do") + " not fill a batch of " +
            std::to_string(batch_size),
        "leave " + OptionName("dataloader_drop_last") + " out or use a smaller batch");
  }
  return {.batch_size = batch_size,
          .shuffle = options.shuffle_train,
          .group_by_length = options.group_by_length,
          .drop_last = options.dataloader_drop_last,
          .seed = static_cast<uint64_t>(options.data_seed.value_or(options.seed)),
          .class_weights = inputs.train->kind == LabelKind::kSingleLabel
                               ? inputs.model->loss_options().ClassWeights()
                               : std::vector<float>()};
}

std::unique_ptr<Scheduler> MakeScheduler(const TrainingArguments& options, Optimizer& optimizer,
                                         int64_t max_steps) {
  try {
    return GetScheduler(options.lr_scheduler_type, optimizer,
                        MakeScheduleOptions(options, max_steps));
  } catch (const Error& e) {
    throw UsageError(
        "lr_scheduler_type " + options.lr_scheduler_type + ": " + WithoutTag(e.message()),
        e.hint().empty()
            ? "set it with " + OptionName("lr_scheduler_kwargs") + " '{\"NAME\": VALUE}'"
            : e.hint());
  }
}

}  // namespace lathe
