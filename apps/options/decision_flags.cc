#include "lathe/apps/options/decision_flags.h"

#include "lathe/core/base/error.h"
#include "lathe/train/support/decision_arguments.h"

namespace lathe {

void AddDecisionFlags(FlagTable& flags, TrainingArguments& o) {
  flags.Group("Decisions (config.json keeps them; lathe predict and lathe evaluate obey)");
  flags
      .Add("thresholds", &o.thresholds,
           "for several labels at once, predict a label above this probability: a number, or one "
           "for each label as in a=0.4,b=0.6. These may be an object of JSON, or a .json file with "
           "one. tune finds those with the highest F1 on --validation_file (default: 0.5)")
      .ValueName("T")
      .TakesJson();
  flags
      .Add("calibrate", &o.calibrate,
           "temperature: divide the logits by the number that gives probabilities the lowest log "
           "loss on --validation_file")
      .Choices({"no", "temperature"});
}

void ValidateDecision(const TrainingArguments& o) {
  CheckDecisionArguments(o);
  if (FitsDecision(o) && !o.do_eval) {
    throw InvalidArgument("--thresholds tune and --calibrate need --do_eval",
                          "they are fitted in the evaluation at the end");
  }
}

}  // namespace lathe
