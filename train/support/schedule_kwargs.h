// Reads lr_scheduler_kwargs: a schedule's own options as JSON, under the names of Transformers'
// get_scheduler.
#pragma once

#include <string>

#include "lathe/optim/schedules.h"

namespace lathe {

// Returns the schedule's options; the defaults for empty text. Throws for text that is no JSON
// object, for names that `schedule` does not have and for wrong types.
ScheduleOptions ParseScheduleKwargs(const std::string& schedule, const std::string& text);

}  // namespace lathe
