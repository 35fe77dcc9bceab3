#include "lathe/train/task/task.h"

#include <absl/status/status.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/base/philox.h"
#include "lathe/models/config/config.h"
#include "lathe/models/config/problem_type.h"
#include "lathe/models/weights/load_weights.h"
#include "lathe/train/support/run_errors.h"
#include "lathe/train/task/load_data.h"
#include "lathe/train/task/local_folders.h"
#include "lathe/train/task/model_fit.h"
#include "lathe/train/task/shared_task.h"

namespace lathe {
namespace {

// Reads a configuration. `name` is a folder or the file itself.
PretrainedConfig ReadConfig(const std::string& name) {
  if (!std::filesystem::is_regular_file(name)) return PretrainedConfig::FromPretrained(name);
  return PretrainedConfig::FromText(ReadFile(name), name);
}

void OverrideConfig(PretrainedConfig& config, const std::string& overrides) {
  if (overrides.empty()) return;
  const std::vector<std::string> known_keys = KnownConfigKeys(config);
  try {
    config.Override(overrides, known_keys);
  } catch (const Error& e) {
    throw UsageError(OptionName("config_overrides") + ": " + e.message(), e.hint());
  }
}

// Returns the folder of a configuration. `name` is that folder or a file in it.
std::string FolderOf(const std::string& name) {
  if (!std::filesystem::is_regular_file(name)) return name;
  const auto parent = std::filesystem::path(name).parent_path();
  return parent.empty() ? "." : parent.string();
}

}  // namespace

std::shared_ptr<Tokenizer> LoadTokenizer(const FinetuneArguments& options) {
  if (!options.tokenizer_name.empty()) return AutoTokenizer::FromPretrained(options.tokenizer_name);
  if (!options.model_name_or_path.empty())
    return AutoTokenizer::FromPretrained(options.model_name_or_path);
  try {
    return AutoTokenizer::FromPretrained(FolderOf(options.config_name));
  } catch (const Error& e) {
    if (e.code() != absl::StatusCode::kNotFound) throw;
    throw Error(e.code(), e.message(),
                "pass the tokenizer's folder with " + OptionName("tokenizer_name"));
  }
}

namespace {

// Rethrows an error in the model's configuration or weights. The new error names the options
// that are to blame or can help.
[[noreturn]] void RethrowWithOptions(const Error& e, const FinetuneArguments& options) {
  const std::string& overrides = options.config_overrides;
  if (const auto* wrong = e.detail<WrongConfigValues>(); wrong != nullptr) {
    for (size_t begin = 0; begin < overrides.size();) {
      const size_t end = std::min(overrides.find(',', begin), overrides.size());
      const std::string key = overrides.substr(begin, overrides.find('=', begin) - begin);
      if (std::ranges::count(wrong->keys, key) > 0) {
        throw UsageError(OptionName("config_overrides") + ": " + wrong->what,
                         "correct the value or leave it out");
      }
      begin = end + 1;
    }
  }
  std::string hint = e.hint();
  const std::string texts =
      OptionName(options.text_column_names.empty() ? "text_columns" : "text_column_names");
  if (const auto* missing = e.detail<MissingColumn>(); missing != nullptr) {
    const bool weight = missing->column == options.sample_weight_column;
    hint = "name another column with " +
           (weight ? OptionName("sample_weight_column")
                   : texts + " or " + OptionName("label_column")) +
           ", or rename one in the file";
  }
  if (const auto* unusable = e.detail<UnusableColumn>(); unusable != nullptr) {
    hint = unusable->column == options.sample_weight_column
               ? "give each row a weight there, or name another column with " +
                     OptionName("sample_weight_column")
           : unusable->column == options.label_column
               ? "give each row a label there, or name another column with " +
                     OptionName("label_column")
               : "give each row a text there, or name the columns of texts with " + texts;
  }
  if (e.detail<MismatchedSize>() != nullptr) {
    hint = "the weights belong to another configuration or number of labels; with " +
           OptionName("ignore_mismatched_sizes") + " this parameter starts fresh";
  }
  throw e.WithHint(hint);
}

// Loads the model with outputs for the task's labels.
void LoadModel(const PretrainedConfig& config, const FinetuneArguments& options, Task& task) {
  FromPretrainedOptions model_options = {.num_labels = task.labels.num_labels(),
                                         .label_names = task.labels.names(),
                                         .problem_type = ProblemType(task.labels.kind()),
                                         .ignore_mismatched_sizes = options.ignore_mismatched_sizes,
                                         .seed = static_cast<uint64_t>(options.seed)};
  if (options.model_name_or_path.empty()) {
    task.model = AutoModelForSequenceClassification::FromConfig(config, model_options);
    task.weights_note = "fresh weights";
  } else {
    model_options.config = config;
    task.model = AutoModelForSequenceClassification::FromPretrained(options.model_name_or_path,
                                                                    model_options);
    task.weights_note = task.model->load_report().Summary();
  }
  task.label_names = task.model->config().label_names();
}

// Loads the tokenizer into the task, and decides to how many tokens texts are cut.
void LoadTokenizerInto(Task& task, const PretrainedConfig& config,
                       const FinetuneArguments& options) {
  task.tokenizer = LoadTokenizer(options);
  CheckVocabulary(*task.tokenizer, config, options, task.notes);
  task.max_length = options.max_seq_length;  // 0: DataLoading decides
  if (const int64_t limit = task.tokenizer->model_max_length();
      limit > 0 && limit < task.max_length) {
    task.max_length = limit;
    task.notes.push_back(OptionName("max_seq_length") + " is " +
                         std::to_string(options.max_seq_length) +
                         " but the tokenizer's model_max_length is " + std::to_string(limit) +
                         ", so texts are cut to " + std::to_string(limit) + " tokens");
  }
}

Task LoadTaskWith(const PretrainedConfig& config, const FinetuneArguments& options,
                  const OpenColumns& open) {
  Task task;
  const auto load_tokenizer = [&] {
    if (task.tokenizer == nullptr) LoadTokenizerInto(task, config, options);
  };
  DataLoading data(task, config, options, open, load_tokenizer);
  data.Read();
  load_tokenizer();
  LoadModel(config, options, task);
  data.Tokenize();
  return task;
}

}  // namespace

namespace {

PretrainedConfig LoadConfig(const FinetuneArguments& options) {
  PretrainedConfig config =
      ReadConfig(options.config_name.empty() ? options.model_name_or_path : options.config_name);
  OverrideConfig(config, options.config_overrides);
  return config;
}

std::map<std::string, uint64_t> Digests(const Tokenizer& tokenizer) {
  std::map<std::string, uint64_t> digests;
  for (const auto& [name, contents] : tokenizer.files()) digests[name] = HashName(contents);
  return digests;
}

// Fills the task with what another rank of this machine has read, and loads the model. Returns
// false if this process can't read it.
bool LoadSharedTask(const std::string& path, const PretrainedConfig& config,
                    const FinetuneArguments& options, Task& task) {
  try {
    ReadSharedTask(path, task);
  } catch (const std::exception&) {  // in another container the path may lead to any file
    return false;
  }
  LoadModel(config, options, task);
  return true;
}

}  // namespace

Task LoadTask(const FinetuneArguments& named, Accelerator& accelerator, const OpenColumns& open) {
  Check(!named.do_train || !open.any(), "load_task", "a training takes no columns of another one");
  const LocalModels local = WithLocalFolders(named, accelerator);
  const FinetuneArguments& options = local.options;
  const PretrainedConfig config = LoadConfig(options);
  try {
    const int main = accelerator.local_main_process_index();
    const std::string key = "task of " + std::to_string(main);
    Task task;
    std::optional<SharedTask> shared;
    if (accelerator.is_local_main_process()) {
      task = LoadTaskWith(config, options, open);
      if (accelerator.use_distributed()) {
        task.tokenizer_digests = Digests(*task.tokenizer);
        shared.emplace(task);
        accelerator.group().PostMessage(key, shared->path());
      }
    } else if (!LoadSharedTask(accelerator.group().AwaitMessage(key, main), config, options,
                               task)) {
      task = LoadTaskWith(config, options, open);
      task.tokenizer_digests = Digests(*task.tokenizer);
    }
    // Waits without a timeout, because a machine may have more to read, or a slower disk.
    accelerator.WaitWithoutTimeout();
    task.options = options;
    task.hub_commits = local.hub_commits;
    return task;
  } catch (const UsageError&) {
    throw;
  } catch (const Error& e) {
    RethrowWithOptions(e, options);
  }
}

void PrintColumnNotes(const Task& task, const Accelerator& accelerator) {
  if (!accelerator.is_main_process()) return;
  for (const std::string& note : task.column_notes) std::cerr << "note: " << note << std::endl;
}

}  // namespace lathe
