// --lr_scheduler_kwargs: a schedule's own options as JSON, under the names of Transformers'
// get_scheduler.
#pragma once

#include <string>

#include "lathe/optim/schedules.h"

namespace lathe {

// Empty text gives the defaults. Throws for text that is no JSON object, names that `schedule` does
// not have and wrong types.
ScheduleOptions ParseScheduleKwargs(const std::string& schedule, const std::string& text);

}  // namespace lathe
