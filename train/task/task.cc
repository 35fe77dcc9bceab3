#include "lathe/train/task/task.h"

#include <absl/status/status.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/base/philox.h"
#include "lathe/models/config/config.h"
#include "lathe/models/config/problem_type.h"
#include "lathe/models/weights/load_weights.h"
#include "lathe/train/support/run_errors.h"
#include "lathe/train/task/cached_dataset.h"
#include "lathe/train/task/labels.h"
#include "lathe/train/task/local_folders.h"
#include "lathe/train/task/model_fit.h"
#include "lathe/train/task/read_table.h"
#include "lathe/train/task/sequence_length.h"
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
    throw UsageError("--config_overrides: " + e.message(), e.hint());
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
    throw Error(e.code(), e.message(), "pass the tokenizer's folder with --tokenizer_name");
  }
}

namespace {

TaskData MakeData(const std::optional<TextTable>& table, const TextColumns& columns,
                  const Task& task, const FinetuneArguments& options, bool labelled) {
  if (!table) return {};
  TokenizedDataset dataset = Tokenize(*table, columns, task.labels, *task.tokenizer,
                                      {.max_length = task.max_length,
                                       .label_column = labelled ? options.label_column : "",
                                       .require_labels = labelled,
                                       .num_threads = static_cast<int>(options.num_threads)});
  CheckSequences(*table, dataset, *task.tokenizer, *task.model, options);
  return {table->path, std::make_shared<const TokenizedDataset>(std::move(dataset))};
}

// Rethrows an error in the model's configuration or weights. The new error names the flags that are
// to blame or can help.
[[noreturn]] void RethrowWithFlags(const Error& e, const std::string& overrides) {
  if (const auto* wrong = e.detail<WrongConfigValues>(); wrong != nullptr) {
    for (size_t begin = 0; begin < overrides.size();) {
      const size_t end = std::min(overrides.find(',', begin), overrides.size());
      const std::string key = overrides.substr(begin, overrides.find('=', begin) - begin);
      if (std::ranges::count(wrong->keys, key) > 0) {
        throw UsageError("--config_overrides: " + wrong->what, "correct the value or leave it out");
      }
      begin = end + 1;
    }
  }
  std::string hint = e.hint();
  if (e.detail<MissingColumn>() != nullptr) {
    hint = "name another column with --text_columns or --label_column, or rename one in the file";
  }
  if (e.detail<MismatchedSize>() != nullptr) {
    hint =
        "the weights belong to another configuration or number of labels; with "
        "--ignore_mismatched_sizes this parameter starts fresh";
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
  task.max_length = options.max_seq_length;
  if (const int64_t limit = task.tokenizer->model_max_length();
      limit > 0 && limit < task.max_length) {
    task.max_length = limit;
    task.notes.push_back("--max_seq_length is " + std::to_string(options.max_seq_length) +
                         " but the tokenizer's model_max_length is " + std::to_string(limit) +
                         ", so texts are cut to " + std::to_string(limit) + " tokens");
  }
}

// Prepares the cache of the training data, and the task's tokenizer for it. Returns null if the
// training data are to be kept in memory.
std::unique_ptr<CachedDataset> PrepareCache(Task& task, const PretrainedConfig& config,
                                            const FinetuneArguments& options) {
  const std::string folder = DatasetCacheFolder(options);
  if (folder.empty()) return nullptr;
  LoadTokenizerInto(task, config, options);
  std::unique_ptr<CachedDataset> cached;
  try {
    cached =
        std::make_unique<CachedDataset>(folder, config, options, *task.tokenizer, task.max_length);
  } catch (const Error& e) {  // such as a library that is not installed
    task.notes.push_back("the training data are kept in memory, not in the dataset cache: " +
                         e.message());
    return nullptr;
  }
  cached->Prepare(config);
  return cached;
}

LabelSet LabelsOf(const std::optional<TextTable>& train, const std::optional<TextTable>& validation,
                  const PretrainedConfig& config, const FinetuneArguments& options) {
  DistinctLabels distinct(options.label_column);
  if (train) distinct.Add(*train);
  return DecideLabels(train ? &distinct : nullptr, validation ? &*validation : nullptr, config,
                      options);
}

void CheckColumns(const Task& task, const std::string& path, const FinetuneArguments& options) {
  const TextColumns& columns = task.text_columns;
  CheckMaxSeqLength(*task.tokenizer, !columns.second.empty(), options.max_seq_length);
  for (const std::string& name : {columns.first, columns.second}) {
    if (name == options.label_column && (options.do_train || options.do_eval)) {
      throw InvalidArgument(path + ": column \"" + name + "\" is the label and cannot be a text",
                            "name other columns with --text_columns or --label_column");
    }
  }
}

Task LoadTaskWith(const PretrainedConfig& config, const FinetuneArguments& options) {
  Task task;
  const std::unique_ptr<CachedDataset> cached = PrepareCache(task, config, options);
  // The labels are those of the whole file, as in run_glue, so its rows are cut only afterwards.
  const auto read_train = [&](std::optional<int64_t> max_rows) {
    return ReadTable(true, "--train_file", options.train_file, max_rows, options);
  };
  const bool evaluates = options.do_eval || (options.do_train && options.eval_strategy != "no");
  std::optional<TextTable> train = cached ? std::nullopt : read_train({});
  const auto validation = ReadTable(evaluates, "--validation_file", options.validation_file,
                                    options.max_eval_samples, options);
  const auto test = ReadTable(options.do_predict, "--test_file", options.test_file,
                              options.max_predict_samples, options);

  task.labels = cached ? cached->labels() : LabelsOf(train, validation, config, options);
  if (options.do_train && options.max_train_samples && !cached)
    train = read_train(options.max_train_samples);

  if (task.tokenizer == nullptr) LoadTokenizerInto(task, config, options);
  LoadModel(config, options, task);

  if (cached) {
    task.text_columns = cached->columns();
    CheckColumns(task, options.train_file, options);
  } else {
    const TextTable& first = train ? *train : validation ? *validation : *test;
    task.text_columns = ChooseTextColumns(first, options.text_columns, options.label_column);
    CheckColumns(task, first.path, options);
  }
  if (cached) {
    std::optional<TokenizedDataset> dataset = cached->Load(*task.model);
    task.notes.insert(task.notes.end(), cached->notes().begin(), cached->notes().end());
    if (dataset) {
      task.train = {options.train_file,
                    std::make_shared<const TokenizedDataset>(std::move(*dataset))};
    } else {
      train = read_train(options.max_train_samples);
    }
  }
  const TextColumns& columns = task.text_columns;
  if (options.do_train && train) task.train = MakeData(train, columns, task, options, true);
  task.validation = MakeData(validation, columns, task, options, true);
  task.test = MakeData(test, columns, task, options, false);
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

Task LoadTask(const FinetuneArguments& named, Accelerator& accelerator) {
  const FinetuneArguments options = WithLocalFolders(named, accelerator);
  const PretrainedConfig config = LoadConfig(options);
  try {
    const int main = accelerator.local_main_process_index();
    const std::string key = "task of " + std::to_string(main);
    Task task;
    std::optional<SharedTask> shared;
    if (accelerator.is_local_main_process()) {
      task = LoadTaskWith(config, options);
      if (accelerator.use_distributed()) {
        task.tokenizer_digests = Digests(*task.tokenizer);
        shared.emplace(task);
        accelerator.group().PostMessage(key, shared->path());
      }
    } else if (!LoadSharedTask(accelerator.group().AwaitMessage(key, main), config, options,
                               task)) {
      task = LoadTaskWith(config, options);
      task.tokenizer_digests = Digests(*task.tokenizer);
    }
    // Waits without a timeout, because a machine may have more to read, or a slower disk.
    accelerator.WaitWithoutTimeout();
    task.options = options;
    return task;
  } catch (const UsageError&) {
    throw;
  } catch (const Error& e) {
    RethrowWithFlags(e, options.config_overrides);
  }
}

}  // namespace lathe
