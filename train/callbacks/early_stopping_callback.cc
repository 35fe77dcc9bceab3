#include "lathe/train/callbacks/early_stopping_callback.h"

#include <cmath>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/train/support/progress.h"

namespace lathe {

namespace {
constexpr char kCount[] = "early_stopping_patience_counter";  // Transformers' name
}  // namespace

EarlyStoppingCallback::EarlyStoppingCallback(int64_t patience, double threshold)
    : patience_(patience), threshold_(threshold) {
  Check(patience >= 1, "early_stopping", "patience must be at least 1 but is ", patience);
  Check(threshold >= 0, "early_stopping", "threshold must be at least 0 but is ", threshold);
}

void EarlyStoppingCallback::OnTrainBegin(const TrainingArguments& arguments,
                                         const TrainerState& state, TrainerControl& control) {
  if (arguments.eval_strategy == "no") {
    throw InvalidArgument("early stopping needs evaluations while training",
                          "set " + OptionName("eval_strategy") + " to steps or epoch");
  }
  if (arguments.metric_for_best_model.empty()) {
    throw InvalidArgument("early stopping needs a metric to compare",
                          "set " + OptionName("metric_for_best_model") + ", to loss for example");
  }
  best_ = state.best_metric;
  if (!std::exchange(goes_on_, false) || !best_) count_ = 0;
  reason_.clear();
  StopIfOutOfPatience(arguments, state, control);
}

void EarlyStoppingCallback::OnEvaluate(const TrainingArguments& arguments,
                                       const TrainerState& state, TrainerControl& control,
                                       const nlohmann::json& metrics) {
  const auto found = metrics.find(BestModelMetric(arguments));
  if (found == metrics.end() || !found->is_number()) return;
  const double metric = found->get<double>();
  const bool better = !best_ || (GreaterIsBetter(arguments) ? metric > *best_ : metric < *best_);
  const bool improved = better && (!best_ || std::abs(metric - *best_) > threshold_);
  count_ = improved ? 0 : count_ + 1;
  if (better) best_ = metric;
  StopIfOutOfPatience(arguments, state, control);
}

void EarlyStoppingCallback::StopIfOutOfPatience(const TrainingArguments& arguments,
                                                const TrainerState& state,
                                                TrainerControl& control) {
  if (count_ < patience_) return;
  control.should_training_stop = true;
  reason_ = BestModelMetric(arguments) + " has not improved" +
            (threshold_ > 0 ? FormatNumber(" by more than %g", threshold_) : "") + " for " +
            std::to_string(count_) + (count_ == 1 ? " evaluation" : " evaluations");
  if (best_ && state.best_global_step) {
    reason_ += FormatNumber("; its best value, %g, is that of step ", *best_) +
               std::to_string(*state.best_global_step);
  }
}

nlohmann::json EarlyStoppingCallback::State() const {
  return {
      {"args", {{"early_stopping_patience", patience_}, {"early_stopping_threshold", threshold_}}},
      {"attributes", {{kCount, count_}}}};
}

void EarlyStoppingCallback::LoadState(const nlohmann::json& state) {
  StateDict attributes;
  attributes.values = state.at("attributes");
  const int64_t count = attributes.Get<int64_t>("early_stopping", kCount);
  if (count < 0) throw DataLoss(std::string(kCount) + " is negative");
  count_ = count;
  goes_on_ = true;
}

}  // namespace lathe
