#include "lathe/data/metrics/glue_tasks.h"

#include <algorithm>

namespace lathe {

std::span<const GlueTask> GlueTasks() {
  static const std::vector<GlueTask> tasks = {
      {"cola", {"sentence"}, {"unacceptable", "acceptable"}},
      {"mnli", {"premise", "hypothesis"}, {"entailment", "neutral", "contradiction"}},
      {"mrpc", {"sentence1", "sentence2"}, {"not_equivalent", "equivalent"}},
      {"qnli", {"question", "sentence"}, {"entailment", "not_entailment"}},
      {"qqp", {"question1", "question2"}, {"not_duplicate", "duplicate"}},
      {"rte", {"sentence1", "sentence2"}, {"entailment", "not_entailment"}},
      {"sst2", {"sentence"}, {"negative", "positive"}},
      {"stsb", {"sentence1", "sentence2"}, {}},
      {"wnli", {"sentence1", "sentence2"}, {"not_entailment", "entailment"}}};
  return tasks;
}

const GlueTask* FindGlueTask(std::string_view name) {
  const std::span<const GlueTask> tasks = GlueTasks();
  const auto found = std::ranges::find(tasks, name, &GlueTask::name);
  return found == tasks.end() ? nullptr : &*found;
}

}  // namespace lathe
