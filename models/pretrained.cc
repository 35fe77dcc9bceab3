#include "lathe/models/pretrained.h"

#include <absl/strings/str_cat.h>

#include "lathe/core/base/error.h"
#include "lathe/core/hub/resolve_checkpoint.h"
#include "lathe/models/architecture.h"
#include "lathe/models/config/problem_type.h"

namespace lathe {
namespace {

// Returns the config's family. Throws also if Lathe doesn't have the problem type.
const Architecture& Find(const PretrainedConfig& config) {
  const Architecture& architecture = ArchitectureOf(config);
  const std::string problem = config.problem_type();
  if (!problem.empty() && !FindLabelKind(problem)) {
    throw WrongConfig(config.path(), {"problem_type"},
                      absl::StrCat("\"problem_type\" \"", problem, "\" is not one that Lathe has"),
                      "known: " + KnownProblemTypes());
  }
  return architecture;
}

PretrainedConfig Apply(PretrainedConfig config, const Architecture& architecture,
                       const FromPretrainedOptions& options) {
  if (!options.label_names.empty()) {
    if (options.num_labels.has_value() &&
        *options.num_labels < static_cast<int64_t>(options.label_names.size())) {
      throw InvalidArgument(absl::StrCat("there are ", options.label_names.size(),
                                         " label names but num_labels is ", *options.num_labels));
    }
    config.SetLabels(options.label_names);
  }
  if (options.num_labels.has_value()) config.SetNumLabels(*options.num_labels);
  if (options.problem_type.has_value()) config.json()["problem_type"] = *options.problem_type;
  if (options.dropout.has_value()) {
    for (const std::string& key : architecture.dropout_keys) config.json()[key] = *options.dropout;
  }
  config.json()["model_type"] = architecture.model_type;
  config.json()["architectures"] = {architecture.class_name};
  return config;
}

}  // namespace

std::vector<std::string> KnownConfigKeys(const PretrainedConfig& config) {
  std::vector<std::string> keys;
  for (const auto& [key, unused] : Find(config).config_defaults.items()) keys.push_back(key);
  return keys;
}

std::shared_ptr<SequenceClassifier> AutoModelForSequenceClassification::WithoutValues(
    const PretrainedConfig& config, const FromPretrainedOptions& options) {
  const Architecture& architecture = Find(config);
  return architecture.make(Apply(config, architecture, options), options.seed);
}

std::shared_ptr<SequenceClassifier> AutoModelForSequenceClassification::FromConfig(
    const PretrainedConfig& config, const FromPretrainedOptions& options) {
  auto model = WithoutValues(config, options);
  model->Initialize(options.seed);
  return model;
}

std::shared_ptr<SequenceClassifier> AutoModelForSequenceClassification::FromPretrained(
    const std::string& name_or_path, const FromPretrainedOptions& options) {
  const std::string dir =
      ResolveCheckpoint(name_or_path, {.config = !options.config.has_value(), .weights = true},
                        options.hub)
          .folder;
  const PretrainedConfig config =
      options.config.has_value() ? *options.config : PretrainedConfig::FromPretrained(dir);
  const Architecture& architecture = Find(config);
  auto model = architecture.make(Apply(config, architecture, options), options.seed);
  model->set_load_report(LoadWeights(
      *model, dir, architecture.names,
      {.ignore_mismatched_sizes = options.ignore_mismatched_sizes, .seed = options.seed}));
  return model;
}

PretrainedConfig AutoConfig::FromPretrained(const std::string& name_or_path,
                                            const HubOptions& hub) {
  return PretrainedConfig::FromPretrained(
      ResolveCheckpoint(name_or_path, {.config = true}, hub).folder);
}

std::shared_ptr<Tokenizer> AutoTokenizer::FromPretrained(const std::string& name_or_path,
                                                         const HubOptions& hub) {
  const std::string dir = ResolveCheckpoint(name_or_path, {.tokenizer = true}, hub).folder;
  std::string model_type;
  try {
    model_type = ModelTypeOf(PretrainedConfig::FromPretrained(dir));
  } catch (const Error&) {
    // A tokenizer may lie alone in its folder. Its own files then say what it is.
  }
  const Architecture* const architecture = FindArchitecture(model_type);
  if (architecture != nullptr && !architecture->tokenizer_model_type.empty()) {
    model_type = architecture->tokenizer_model_type;
  }
  return LoadTokenizer(dir, model_type);
}

}  // namespace lathe
