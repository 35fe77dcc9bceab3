#include "lathe/train/task/cached_dataset.h"

#include <absl/status/status.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/checkpoint/sha256.h"
#include "lathe/core/hub/hub_settings.h"
#include "lathe/core/json/json_number.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/column_files/make_once.h"
#include "lathe/data/datasets/dataset_file.h"
#include "lathe/distributed/job/job.h"
#include "lathe/models/config/config.h"
#include "lathe/train/rows/data_files.h"
#include "lathe/train/rows/read_table.h"
#include "lathe/train/rows/row_filter.h"
#include "lathe/train/task/model_fit.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

// The columns of the file that hold the marks of rows.
constexpr char kHashes[] = "text_hashes", kPlaces[] = "places", kElements[] = "elements";

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

// Returns what decides on the labels' meaning and on the columns of texts, if the file doesn't hold
// the decision itself.
nlohmann::json KeyOfRows(const DataSplit& split, const PretrainedConfig& config,
                         const FinetuneArguments& options, const KnownAboutRows& known) {
  nlohmann::json json = {{"split", split.name},
                         {"max_rows", split.max_rows.value_or(-1)},
                         {"share", split.share},
                         {"drops_duplicates", split.drops_duplicates},
                         {"label_column", options.label_column},
                         {"sample_weight_column", options.sample_weight_column},
                         {"weight_column", split.weight_column}};
  if (known.labels) {
    json["labels"] = {static_cast<int>(known.labels->kind()), known.labels->names()};
  } else {
    json["problem_type"] = options.problem_type;
    json["num_labels"] = options.num_labels.value_or(-1);
    json["config_labels"] = config.label_names();
    if (!options.do_train) json["config_problem_type"] = config.problem_type();
    if (known.validation_labels) {
      std::vector<std::string> names;
      for (const std::string& label : known.validation_labels->labels()) {
        // A score changes nothing.
        if (label.find('.') == std::string::npos || !ParseNumber(label)) names.push_back(label);
      }
      std::ranges::sort(names);
      json["validation_labels"] = names;
    }
    if (options.do_regression) json["do_regression"] = *options.do_regression;
    if (!options.task_name.empty()) json["task_name"] = options.task_name;
  }
  if (known.columns) {
    json["columns"] = {known.columns->first, known.columns->second};
  } else {
    json["text_columns"] = options.text_columns;
  }
  if (!options.text_column_names.empty())
    json["joined_columns"] = {options.text_column_names, options.text_column_delimiter};
  return json;
}

nlohmann::json KeyOf(const DataSplit& split, const PretrainedConfig& config,
                     const FinetuneArguments& options, const Tokenizer& tokenizer,
                     int64_t max_length, const KnownAboutRows& known) {
  nlohmann::json files = nlohmann::json::array();
  for (const std::string& path : split.files) {
    const FileDigest file = DigestOfFile(path);
    files.push_back({{"size", file.size},
                     {"sha256", file.sha256},
                     {"format", TableFormat(path)},
                     {"extension", fs::path(path).extension().string()}});
  }
  return {{"program", BuildId()},
          {"files", files},
          {"invalid_utf8", options.invalid_utf8},
          {"rows", KeyOfRows(split, config, options, known)},
          {"max_length", max_length},
          {"positions", max_length > 0 ? 0 : config.GetInt("max_position_embeddings", -1)},
          {"model_type", config.model_type()},
          {"tokenizer", Describe(tokenizer)}};
}

// The states of files that a writer would change.
std::vector<std::pair<int64_t, int64_t>> SizesAndTimes(const std::vector<std::string>& files) {
  std::vector<std::pair<int64_t, int64_t>> states;
  for (const std::string& path : files) {
    struct stat info = {};
    stat(path.c_str(), &info);
    states.emplace_back(info.st_size, info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec);
  }
  return states;
}

}  // namespace

std::string DatasetCacheFolder(const DataSplit& split, const FinetuneArguments& options) {
  if (!split.wanted || options.dataset_cache == "none") return "";
  int64_t size = 0;
  for (const std::string& path : split.files) {
    std::error_code code;
    if (!fs::is_regular_file(path, code)) return "";
    const auto bytes = fs::file_size(path, code);
    if (!code) size += static_cast<int64_t>(bytes);
  }
  if (options.dataset_cache != "auto") return options.dataset_cache;
  if (size < kSmallestCachedFile) return "";
  return HuggingFaceHome() + "/lathe/datasets";
}

std::string NoteOnRowsInMemory(const DataSplit& split, const std::string& why) {
  return std::string("the ") + split.name +
         " data are kept in memory, not in the dataset cache: " + why;
}

CachedDataset::CachedDataset(const std::string& folder, const DataSplit& split,
                             const PretrainedConfig& config, const FinetuneArguments& options,
                             const Tokenizer& tokenizer, int64_t max_length,
                             const KnownAboutRows& known)
    : options_(options),
      tokenizer_(tokenizer),
      split_(split),
      max_length_(max_length),
      known_(known),
      file_states_(SizesAndTimes(split.files)),
      key_(DumpJson(KeyOf(split, config, options, tokenizer, max_length, known))),
      path_(folder + "/" + split.prefix + "-" + Sha256(key_).substr(0, 32) + ".h5") {}

bool CachedDataset::Open() {
  try {
    TokenizedDataset dataset = OpenDatasetFile(path_);
    const nlohmann::json& task = DatasetFileTask(dataset);
    if (task.at("key") != key_) throw DataLoss(path_ + ": is damaged: it is of other data");
    known_ = {.labels = MakeLabelSet(dataset.kind, task.at("label_names")),
              .columns = TextColumns{task.at("columns").at(0), task.at("columns").at(1)},
              .rule = std::nullopt};
    if (!task.at("rule").is_null()) known_.rule = ValidationRule::FromJson(task.at("rule"));
    GetWholeNumber<int64_t>(task.at("dropped"));
    const auto hashes = DatasetFileColumn(dataset, kHashes);
    const auto places = DatasetFileColumn(dataset, kPlaces);
    const auto elements = DatasetFileColumn(dataset, kElements);  // of arrays in JSON only
    marks_ = hashes && places ? TextMarks::FromColumns(*hashes, *places,
                                                       elements.value_or(std::vector<int64_t>()))
                              : TextMarks::None();
    dataset_ = std::move(dataset);
    return true;
  } catch (const nlohmann::json::exception&) {
    damaged_ = true;
  } catch (const Error& e) {
    damaged_ = e.code() != absl::StatusCode::kNotFound;
  }
  return false;
}

void CachedDataset::Prepare(const PretrainedConfig& config) {
  if (!options_.overwrite_cache && Open()) return;
  if (known_.labels && known_.columns) return;
  Scan(config);
}

// Reads all rows once to find out what isn't known.
void CachedDataset::Scan(const PretrainedConfig& config) {
  DistinctLabels labels(options_.label_column);
  bool has_labels = options_.do_train;  // without a training the config may know them
  int64_t num_rows = 0;
  std::optional<ValidationRule> rule;
  if (split_.rows != DataSplit::Rows::kAll) rule.emplace(split_.share);
  std::optional<TextColumns> columns;
  std::vector<TextTable> headers;  // the columns of each file, without rows
  ForEachBlock(split_, options_, [&](TextTable& rows, size_t file) {
    if (headers.size() <= file) {
      headers.push_back({.path = rows.path,
                         .names = rows.names,
                         .columns = std::vector<std::vector<std::string>>(rows.names.size()),
                         .lines = {},
                         .first_array_lines = std::vector<int64_t>(rows.names.size()),
                         .elements = {},
                         .unusable = rows.unusable,
                         .without_text = rows.without_text});
      has_labels = has_labels || rows.has(options_.label_column);
      if (rule) columns = ChooseColumns(headers, options_);
    }
    for (size_t c = 0; c < rows.first_array_lines.size(); ++c) {
      int64_t& first = headers.back().first_array_lines[c];
      if (first == 0) first = rows.first_array_lines[c];
    }
    headers.back().unusable.insert(rows.unusable.begin(), rows.unusable.end());
    headers.back().without_text = rows.without_text;
    // The labels are those of the whole training data, as in run_glue.
    if (!options_.do_train && split_.max_rows && !split_.drops_duplicates)
      CutRows(rows, *split_.max_rows - num_rows);
    num_rows += rows.rows();
    if (!known_.labels && has_labels && rows.rows() > 0) labels.Add(rows);
    if (rule) rule->Add(rows, *columns, options_.label_column);
  });
  if (!known_.labels) {
    known_.labels =
        options_.do_train
            ? DecideLabels(&labels, known_.validation_labels ? &*known_.validation_labels : nullptr,
                           config, options_)
            : DecideLabels(nullptr, has_labels ? &labels : nullptr, config, options_);
  }
  if (!known_.columns) known_.columns = ChooseColumns(headers, options_);
  if (rule) rule->Decide(known_.labels->kind(), NameOfFiles(split_.files));
  known_.rule = rule;
}

void CachedDataset::Make(const std::string& draft, const SequenceClassifier& model) {
  DatasetFileWriter writer(draft, path_,
                           {.kind = labels().kind(),
                            .num_labels = labels().num_labels(),
                            .has_labels = split_.labelled,
                            .vocab_size = tokenizer_.vocab_size(),
                            .has_sample_weights = !split_.weight_column.empty()});
  const int64_t max_length = max_length_ > 0 ? max_length_ : LongestText(tokenizer_, model);
  RowFilter filter(split_, options_, labels().kind(), known_.rule ? &*known_.rule : nullptr);
  marks_ = {};
  const auto tokenize = [&](TextTable& rows) {
    TokenizedDataset part = Tokenize(rows, columns(), labels(), tokenizer_,
                                     {.max_length = max_length,
                                      .label_column = split_.labelled ? options_.label_column : "",
                                      .require_labels = split_.labelled,
                                      .weight_column = split_.weight_column,
                                      .num_threads = static_cast<int>(options_.num_threads)});
    CheckSequences(rows, part, tokenizer_, model, options_);
    return part;
  };
  bool written = true;
  try {
    // Rows behind the last one that is used are read, too, so that their errors are found.
    ForEachBlock(split_, options_, [&](TextTable& rows, size_t file) {
      filter.Apply(rows, columns());
      if (rows.rows() == 0) return;
      if (split_.labelled) marks_.Add(rows, file, columns());
      const TokenizedDataset part = tokenize(rows);
      written = false;
      writer.Append(part);
      written = true;
    });
    if (SizesAndTimes(split_.files) != file_states_) {
      throw Error(absl::StatusCode::kFailedPrecondition,
                  NameOfFiles(split_.files) + ": changed while it was read",
                  "start again when nothing writes to it");
    }
  } catch (...) {
    if (written) data_error_ = std::current_exception();
    throw;
  }
  if (split_.labelled && marks_.complete()) {
    writer.AddColumn(kHashes, marks_.hashes());
    writer.AddColumn(kPlaces, marks_.places());
    if (!marks_.elements().empty()) writer.AddColumn(kElements, marks_.elements());
  }
  writer.Finish({{"key", key_},
                 {"rule", known_.rule ? known_.rule->ToJson() : nlohmann::json()},
                 {"dropped", filter.num_dropped()},
                 {"label_names", labels().names()},
                 {"columns", {columns().first, columns().second}}});
}

void CachedDataset::AddNote(const std::string& note) {
  const auto dropped = GetWholeNumber<int64_t>(DatasetFileTask(*dataset_).at("dropped"));
  if (dropped > 0) notes_.push_back(NoteOnDuplicates(split_, dropped));
  notes_.push_back(note);
}

std::optional<TokenizedDataset> CachedDataset::Load(const SequenceClassifier& model) {
  const auto fits = [&] { return FitsModel(DatasetFileExtent(*dataset_), tokenizer_, model); };
  const std::string name = split_.name;
  if (dataset_ && fits()) {
    AddNote("the " + name + " data were tokenized before and are read from " + path_);
    return std::exchange(dataset_, std::nullopt);
  }
  try {
    if (damaged_) notes_.push_back(path_ + " was damaged or of another version; it is made anew");
    MakeOnce(path_, {.is_there = [&] { return !options_.overwrite_cache && Open() && fits(); },
                     .make = [&](const std::string& draft) { Make(draft, model); },
                     .on_wait =
                         [&] {
                           std::cerr << "note: waiting for another process that tokenizes "
                                     << NameOfFiles(split_.files) << std::endl;
                         }});
    dataset_ = OpenDatasetFile(path_);
    AddNote("the tokenized " + name + " data are kept in " + path_ + "; " +
            OptionName("dataset_cache") + " none keeps them in memory");
    return std::exchange(dataset_, std::nullopt);
  } catch (const Error& e) {
    if (data_error_ != nullptr) std::rethrow_exception(data_error_);
    notes_.push_back(NoteOnRowsInMemory(split_, e.message()));
    return std::nullopt;
  }
}

}  // namespace lathe
