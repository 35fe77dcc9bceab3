// What the report of a training says besides its curves.
#pragma once

#include <string>

#include "lathe/train/callbacks/report_callback.h"
#include "lathe/train/task/task.h"

namespace lathe {

// Returns what the callback needs to know. `folder` is where the report goes.
ReportCallback::Options ReportPageOptions(const FinetuneArguments& options, const Task& task,
                                          const std::string& folder);

}  // namespace lathe
