// Reads lr_scheduler_kwargs: a schedule's own options as JSON, under the names of Transformers'
// get_scheduler. Also tells the number of warmup steps.
#pragma once

#include <cstdint>
#include <string>

#include "lathe/optim/schedules.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Returns the schedule's options; the defaults for empty text. Throws for text that is no JSON
// object, for names that `schedule` does not have and for wrong types.
ScheduleOptions ParseScheduleKwargs(const std::string& schedule, const std::string& text);

// Returns true unless the rates of the schedule begin at their peak whatever the warmup is.
bool HasWarmup(const std::string& schedule);

// Returns in how many of `max_steps` steps the rate rises from 0, by warmup_steps or warmup_ratio.
int64_t NumWarmupSteps(const TrainingArguments& arguments, int64_t max_steps);

// Returns a number of steps, at least 1. A value below 1 is a share of all steps.
int64_t StepsOf(double value, int64_t max_steps);

}  // namespace lathe
