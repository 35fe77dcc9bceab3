#include "lathe/apps/finetune/tracked_options.h"

namespace lathe {

nlohmann::json TrackedHyperparameters(const ParsedOptions& parsed, const Task& task) {
  nlohmann::json values = parsed.values;
  values["model_config"] = task.model->config().json();
  return values;
}

}  // namespace lathe
