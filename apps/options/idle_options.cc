#include "lathe/apps/options/idle_options.h"

#include <string_view>

#include "lathe/train/support/optimizer_arguments.h"
#include "lathe/train/support/schedule_kwargs.h"

namespace lathe {
namespace {

using Arguments = FinetuneArguments;

template <auto kMember>
bool IsGiven(const Arguments& a) {
  static const Arguments kUsual;
  return a.*kMember != kUsual.*kMember;
}

bool HasNoWarmup(const Arguments& a) { return !HasWarmup(a.lr_scheduler_type); }

// eval_steps is logging_steps unless it was given.
bool EvaluatesWhenItLogs(const Arguments& a) { return a.eval_steps == a.logging_steps; }

struct IdleOption {
  std::string_view option, reason;
  bool (*is_idle)(const Arguments& arguments);
};

constexpr std::string_view kWithOther = "has no effect unless --optim is AdamW";
constexpr std::string_view kWithSchedule = "has no effect with this --lr_scheduler_type";

constexpr IdleOption kOptions[] = {
    {"num_train_epochs", "has no effect beside --max_steps",
     [](auto& a) { return IsGiven<&Arguments::num_train_epochs>(a) && a.max_steps > 0; }},
    {"adam_beta1", kWithOther,
     [](auto& a) { return IsGiven<&Arguments::adam_beta1>(a) && !UsesAdamW(a); }},
    {"adam_beta2", kWithOther,
     [](auto& a) { return IsGiven<&Arguments::adam_beta2>(a) && !UsesAdamW(a); }},
    {"adam_epsilon", kWithOther,
     [](auto& a) { return IsGiven<&Arguments::adam_epsilon>(a) && !UsesAdamW(a); }},
    {"warmup_steps", kWithSchedule, [](auto& a) { return a.warmup_steps > 0 && HasNoWarmup(a); }},
    {"warmup_ratio", kWithSchedule, [](auto& a) { return a.warmup_ratio > 0 && HasNoWarmup(a); }},
    {"warmup_ratio", "has no effect beside --warmup_steps",
     [](auto& a) { return a.warmup_ratio > 0 && a.warmup_steps > 0 && !HasNoWarmup(a); }},
    {"fp16_init_scale", "has no effect without --fp16",
     [](auto& a) {
       return IsGiven<&Arguments::fp16_init_scale>(a) && a.mixed_precision != "fp16";
     }},
    {"data_seed", "has no effect with --no_shuffle_train",
     [](auto& a) { return a.data_seed && !a.shuffle_train && !a.group_by_length; }},
    {"overwrite_cache", "has no effect with --dataset_cache none",
     [](auto& a) { return a.overwrite_cache && a.dataset_cache == "none"; }},
    {"text_column_delimiter", "has no effect unless --text_column_names has two columns or more",
     [](auto& a) {
       return IsGiven<&Arguments::text_column_delimiter>(a) && a.text_column_names.size() < 2;
     }},
    {"logging_steps", "has no effect without --logging_strategy steps",
     [](auto& a) {
       const bool decides = a.eval_strategy == "steps" && EvaluatesWhenItLogs(a);
       return IsGiven<&Arguments::logging_steps>(a) && a.logging_strategy != "steps" && !decides;
     }},
    {"eval_steps", "has no effect without --eval_strategy steps",
     [](auto& a) { return a.eval_strategy != "steps" && !EvaluatesWhenItLogs(a); }},
    {"eval_delay", "has no effect without --eval_strategy",
     [](auto& a) { return a.eval_strategy == "no" && a.eval_delay > 0; }},
    {"metric_for_best_model", "has no effect without --eval_strategy",
     [](auto& a) { return a.eval_strategy == "no" && !a.metric_for_best_model.empty(); }},
    {"greater_is_better", "has no effect without --eval_strategy",
     [](auto& a) { return a.eval_strategy == "no" && a.greater_is_better.has_value(); }},
    {"logging_dir", "has no effect without --report_to",
     [](auto& a) { return !a.logging_dir.empty() && a.report_to.empty(); }},
    {"save_steps", "has no effect without --save_strategy steps",
     [](auto& a) { return IsGiven<&Arguments::save_steps>(a) && a.save_strategy != "steps"; }},
    {"save_seconds", "has no effect with --save_strategy no",
     [](auto& a) { return a.save_seconds > 0 && a.save_strategy == "no"; }},
    {"save_total_limit", "has nothing to limit; --save_strategy or --save_steps saves checkpoints",
     [](auto& a) { return a.save_total_limit && a.save_strategy == "no"; }},
};

}  // namespace

std::vector<std::string> IdleOptions(const FinetuneArguments& arguments) {
  std::vector<std::string> lines;
  for (const IdleOption& row : kOptions) {
    if (row.is_idle(arguments))
      lines.push_back("--" + std::string(row.option) + " " + std::string(row.reason));
  }
  return lines;
}

}  // namespace lathe
