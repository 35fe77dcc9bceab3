#include "lathe/train/task/cached_dataset.h"

#include <absl/status/status.h>
#include <sys/stat.h>

#include <filesystem>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/checkpoint/sha256.h"
#include "lathe/core/hub/hub_settings.h"
#include "lathe/data/column_files/make_once.h"
#include "lathe/data/datasets/dataset_file.h"
#include "lathe/data/datasets/text_table_reader.h"
#include "lathe/distributed/job/job.h"
#include "lathe/models/config/config.h"
#include "lathe/train/task/model_fit.h"
#include "lathe/train/task/read_table.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr char kFlag[] = "--train_file";

// Returns what a tokenizer's results follow from. Its files don't tell everything: the model's type
// may choose the template. So the results for two texts are part of it. A tokenizer without an
// unknown token may refuse them.
nlohmann::json Describe(const Tokenizer& tokenizer) {
  nlohmann::json json = {{"model_max_length", tokenizer.model_max_length()},
                         {"vocab_size", tokenizer.vocab_size()}};
  for (const auto& [name, contents] : tokenizer.files()) json["files"][name] = Sha256(contents);
  for (const std::optional<std::string_view> pair :
       {std::optional<std::string_view>(), std::optional<std::string_view>("\u00c9t\u00e9  2")}) {
    try {
      const Encoding encoding = tokenizer.Encode("A text, isn't it?", pair);
      json["ids"].push_back(encoding.input_ids);
      json["types"].push_back(encoding.token_type_ids);
    } catch (const Error&) {  // it may have no token for some character
      json["ids"].push_back(nullptr);
    }
  }
  return json;
}

nlohmann::json KeyOf(const PretrainedConfig& config, const FinetuneArguments& options,
                     const Tokenizer& tokenizer, int64_t max_length) {
  const FileDigest file = DigestOfFile(options.train_file);
  nlohmann::json key = {{"program", BuildId()},
                        {"file", {{"size", file.size}, {"sha256", file.sha256}}},
                        {"extension", fs::path(options.train_file).extension().string()},
                        {"invalid_utf8", options.invalid_utf8},
                        {"max_train_samples", options.max_train_samples.value_or(-1)},
                        {"text_columns", options.text_columns},
                        {"label_column", options.label_column},
                        {"problem_type", options.problem_type},
                        {"num_labels", options.num_labels.value_or(-1)},
                        {"config_labels", config.label_names()},
                        {"max_length", max_length},
                        {"model_type", config.model_type()},
                        {"tokenizer", Describe(tokenizer)}};
  if (options.do_regression) key["do_regression"] = *options.do_regression;
  return key;
}

// The state of a file that a writer would change.
std::pair<int64_t, int64_t> SizeAndTime(const std::string& path) {
  struct stat info = {};
  stat(path.c_str(), &info);
  return {info.st_size, info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec};
}

}  // namespace

std::string DatasetCacheFolder(const FinetuneArguments& options) {
  std::error_code code;
  if (!options.do_train || options.dataset_cache == "none" ||
      !fs::is_regular_file(options.train_file, code))
    return "";
  if (options.dataset_cache != "auto") return options.dataset_cache;
  const auto size = fs::file_size(options.train_file, code);
  if (code || static_cast<int64_t>(size) < kSmallestCachedFile) return "";
  return HuggingFaceHome() + "/lathe/datasets";
}

CachedDataset::CachedDataset(const std::string& folder, const PretrainedConfig& config,
                             const FinetuneArguments& options, const Tokenizer& tokenizer,
                             int64_t max_length)
    : options_(options),
      tokenizer_(tokenizer),
      max_length_(max_length),
      file_state_(SizeAndTime(options.train_file)),
      key_(KeyOf(config, options, tokenizer, max_length)
               .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)),
      path_(folder + "/train-" + Sha256(key_).substr(0, 32) + ".h5") {}

bool CachedDataset::Open() {
  try {
    TokenizedDataset dataset = OpenDatasetFile(path_);
    const nlohmann::json& task = DatasetFileTask(dataset);
    if (task.at("key") != key_) throw DataLoss(path_ + ": is damaged: it is of other data");
    labels_ = MakeLabelSet(dataset.kind, task.at("label_names"));
    columns_ = {task.at("columns").at(0), task.at("columns").at(1)};
    dataset_ = std::move(dataset);
    return true;
  } catch (const nlohmann::json::exception&) {
    damaged_ = true;
  } catch (const Error& e) {
    damaged_ = e.code() != absl::StatusCode::kNotFound;
  }
  return false;
}

void CachedDataset::ForEachBlock(const std::function<bool(TextTable&)>& use) const {
  const auto with_hint = [](const auto& read) {
    try {
      return read();
    } catch (const Error& e) {
      throw WithFlagHint(e, kFlag);
    }
  };
  const auto reader = with_hint([&] {
    return std::make_unique<TextTableReader>(options_.train_file, OnInvalidUtf8(options_));
  });
  for (;;) {
    TextTable rows = with_hint([&] { return reader->Next(); });
    if (rows.rows() == 0 || !use(rows)) return;
  }
}

void CachedDataset::Prepare(const PretrainedConfig& config) {
  if (!options_.overwrite_cache && Open()) return;
  DistinctLabels labels(options_.label_column);
  TextTable names;  // the columns, without rows
  ForEachBlock([&](TextTable& rows) {
    labels.Add(rows);
    if (names.names.empty()) {
      names.path = rows.path;
      names.names = rows.names;
      names.columns.resize(rows.names.size());
      names.first_array_lines.resize(rows.names.size());
    }
    for (size_t c = 0; c < rows.first_array_lines.size(); ++c) {
      if (names.first_array_lines[c] == 0) names.first_array_lines[c] = rows.first_array_lines[c];
    }
    return true;
  });
  labels_ = DecideLabels(&labels, nullptr, config, options_);
  columns_ = ChooseTextColumns(names, options_.text_columns, options_.label_column);
}

void CachedDataset::Make(const std::string& draft, const SequenceClassifier& model) {
  DatasetFileWriter writer(draft, path_,
                           {.kind = labels_.kind(),
                            .num_labels = labels_.num_labels(),
                            .vocab_size = tokenizer_.vocab_size()});
  const int64_t most = options_.max_train_samples.value_or(std::numeric_limits<int64_t>::max());
  const auto tokenize = [&](TextTable& rows) {
    CutRows(rows, most - writer.num_rows());
    TokenizedDataset part = Tokenize(rows, columns_, labels_, tokenizer_,
                                     {.max_length = max_length_,
                                      .label_column = options_.label_column,
                                      .num_threads = static_cast<int>(options_.num_threads)});
    CheckSequences(rows, part, tokenizer_, model, options_);
    return part;
  };
  bool written = true;
  try {
    ForEachBlock([&](TextTable& rows) {
      const TokenizedDataset part = tokenize(rows);
      written = false;
      writer.Append(part);
      written = true;
      return writer.num_rows() < most;
    });
    if (SizeAndTime(options_.train_file) != file_state_) {
      throw Error(absl::StatusCode::kFailedPrecondition,
                  options_.train_file + ": changed while it was read",
                  "start again when nothing writes to the file");
    }
  } catch (...) {
    if (written) data_error_ = std::current_exception();
    throw;
  }
  writer.Finish({{"key", key_},
                 {"label_names", labels_.names()},
                 {"columns", {columns_.first, columns_.second}}});
}

std::optional<TokenizedDataset> CachedDataset::Load(const SequenceClassifier& model) {
  const auto fits = [&] { return FitsModel(DatasetFileExtent(*dataset_), tokenizer_, model); };
  if (dataset_ && fits()) {
    notes_.push_back("the training data were tokenized before and are read from " + path_);
    return std::exchange(dataset_, std::nullopt);
  }
  try {
    if (damaged_) notes_.push_back(path_ + " was damaged or of another version; it is made anew");
    MakeOnce(path_, {.is_there = [&] { return !options_.overwrite_cache && Open() && fits(); },
                     .make = [&](const std::string& draft) { Make(draft, model); },
                     .on_wait =
                         [&] {
                           std::cerr << "note: waiting for another process that tokenizes "
                                     << options_.train_file << std::endl;
                         }});
    dataset_ = OpenDatasetFile(path_);
    notes_.push_back("the tokenized training data are kept in " + path_ +
                     "; --dataset_cache none keeps them in memory");
    return std::exchange(dataset_, std::nullopt);
  } catch (const Error& e) {
    if (data_error_ != nullptr) std::rethrow_exception(data_error_);
    notes_.push_back("the training data are kept in memory, not in the dataset cache: " +
                     e.message());
    return std::nullopt;
  }
}

}  // namespace lathe
