// --lr_scheduler_kwargs: a schedule's own options as JSON, under the names of Transformers'
// get_scheduler.
#pragma once

#include <string>

#include "lathe/optim/schedules.h"

namespace lathe {

// Empty text gives the defaults. Throws for text that is no JSON object, unknown names and wrong
// types.
ScheduleOptions ParseScheduleKwargs(const std::string& text);

}  // namespace lathe
