#include "lathe/apps/finetune/card_facts.h"

#include <filesystem>
#include <string>
#include <system_error>

#include "lathe/core/hub/hub_names.h"
#include "lathe/train/rows/data_split.h"
#include "lathe/train/support/hyperparameters.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

std::string FileName(const fs::path& path) { return path.lexically_normal().filename().string(); }

// Returns a name of the split's files, without their folders.
std::string NameOfData(DataSplit split) {
  for (std::string& file : split.files) file = FileName(file);
  return NameForPeople(split);
}

}  // namespace

ModelCardFacts CardFactsOf(const FinetuneArguments& options, const Accelerator& accelerator) {
  ModelCardFacts facts;
  facts.base_model = options.model_name_or_path;
  // A folder goes before a name on the Hub. Its path is nobody's business but its owner's.
  facts.base_is_local = IsLocalPath(facts.base_model);
  std::error_code code;
  if (facts.base_is_local)
    facts.base_model = FileName(fs::weakly_canonical(facts.base_model, code));
  facts.training_data = NameOfData(TrainingSplit(options));
  facts.evaluation_data = NameOfData(ValidationSplit(options));
  facts.hyperparameters =
      TrainerHyperparameters(options, accelerator.num_processes(), !accelerator.device().is_cpu());
  return facts;
}

}  // namespace lathe
