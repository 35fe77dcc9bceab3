#include "lathe/data/datasets/dataset_file.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/json/json_number.h"
#include "lathe/data/datasets/row_file.h"

namespace lathe {
namespace {

constexpr int64_t kMost16BitIds = int64_t{1} << 16;

}  // namespace

DatasetFileWriter::DatasetFileWriter(const std::string& path, const std::string& shown_path,
                                     const Options& options)
    : writer_(path, shown_path), options_(options), narrow_(options.vocab_size <= kMost16BitIds) {
  writer_.Add("input_ids", narrow_ ? ElementType::kU16 : ElementType::kU32);
  writer_.Add("lengths", ElementType::kU32);
  writer_.Add("row_checks", ElementType::kU32);
  if (options.has_sample_weights) writer_.Add("sample_weights", ElementType::kF32);
  if (!options.has_labels) return;
  if (options.kind == LabelKind::kMultiLabel) {
    writer_.Add("label_flags", ElementType::kU8);
  } else {
    writer_.Add("labels",
                options.kind == LabelKind::kSingleLabel ? ElementType::kI64 : ElementType::kF32);
  }
}

void DatasetFileWriter::Append(const TokenizedDataset& part) {
  Check(part.file == nullptr, "dataset_file", "only a dataset in memory can be appended");
  Check(part.kind == options_.kind && part.has_labels == options_.has_labels &&
            part.num_labels == options_.num_labels,
        "dataset_file", "the dataset has labels of another kind than the file");
  Check(std::ssize(part.sample_weights) == (options_.has_sample_weights ? part.size() : 0),
        "dataset_file", "the dataset has ", part.sample_weights.size(), " sample weights");
  std::vector<uint32_t> lengths, checks;
  for (int64_t i = 0; i < part.size(); ++i) {
    const int64_t length = part.length(i);
    Check(length <= std::numeric_limits<uint32_t>::max(), "dataset_file", "sample ", i, " has ",
          length, " tokens, which are too many");
    RowData row{.input_ids = {part.input_ids.begin() + part.offsets[i],
                              part.input_ids.begin() + part.offsets[i + 1]},
                .token_type_ids = {part.token_type_ids.begin() + part.offsets[i],
                                   part.token_type_ids.begin() + part.offsets[i + 1]},
                .label_flags = {}};
    if (part.has_labels && part.kind == LabelKind::kMultiLabel) {
      for (int64_t label = 0; label < part.num_labels; ++label) {
        row.label_flags.push_back(
            static_cast<uint8_t>(part.scores[static_cast<size_t>(i * part.num_labels + label)]));
      }
    }
    lengths.push_back(static_cast<uint32_t>(length));
    checks.push_back(CheckOfRow(row));
    extent_.longest = std::max(extent_.longest, length);
  }
  writer_.Append("lengths", lengths);
  writer_.Append("row_checks", checks);
  AppendIds(part.input_ids);
  AppendTypes(part.token_type_ids);
  if (part.has_labels) AppendLabels(part);
  if (options_.has_sample_weights) writer_.Append("sample_weights", part.sample_weights);
  num_rows_ += part.size();
  num_tokens_ += part.num_tokens();
  num_truncated_ += part.num_truncated;
}

void DatasetFileWriter::AppendIds(const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) {
    Check(id >= 0 && id < options_.vocab_size, "dataset_file", "token id ", id, " is not in [0, ",
          options_.vocab_size, ")");
    extent_.largest_id = std::max<int64_t>(extent_.largest_id, id);
  }
  input_ids_hash_.Add(ids.data(), ids.size() * sizeof ids[0]);
  if (narrow_) {
    writer_.Append("input_ids", std::vector<uint16_t>(ids.begin(), ids.end()));
  } else {
    writer_.Append("input_ids", ids.data(), std::ssize(ids));
  }
}

void DatasetFileWriter::AppendTypes(const std::vector<uint8_t>& types) {
  token_type_ids_hash_.Add(types.data(), types.size());
  for (const uint8_t type : types)
    extent_.largest_type = std::max<int64_t>(extent_.largest_type, type);
  if (extent_.largest_type == 0) return;
  if (!has_types_) {  // these are the first that are not 0
    has_types_ = true;
    writer_.Add("token_type_ids", ElementType::kU8);
    const std::vector<uint8_t> zeros(static_cast<size_t>(kColumnChunkBytes));
    for (int64_t left = num_tokens_; left > 0; left -= kColumnChunkBytes)
      writer_.Append("token_type_ids", zeros.data(), std::min(left, kColumnChunkBytes));
  }
  writer_.Append("token_type_ids", types);
}

void DatasetFileWriter::AppendLabels(const TokenizedDataset& part) {
  switch (part.kind) {
    case LabelKind::kSingleLabel:
      writer_.Append("labels", part.classes);
      break;
    case LabelKind::kRegression:
      writer_.Append("labels", part.scores);
      break;
    case LabelKind::kMultiLabel:
      scores_hash_.Add(part.scores.data(), part.scores.size() * sizeof part.scores[0]);
      writer_.Append("label_flags", std::vector<uint8_t>(part.scores.begin(), part.scores.end()));
      break;
  }
}

void DatasetFileWriter::AddColumn(const std::string& name, const std::vector<int64_t>& values) {
  Check(std::ssize(values) == num_rows_, "dataset_file", "column ", name, " has ", values.size(),
        " numbers for ", num_rows_, " rows");
  writer_.Add(name, ElementType::kI64);
  writer_.Append(name, values);
}

void DatasetFileWriter::Finish() { Finish(nullptr); }

void DatasetFileWriter::Finish(const nlohmann::json& task) {
  writer_.Finish({{"kind", static_cast<int>(options_.kind)},
                  {"num_labels", options_.num_labels},
                  {"has_labels", options_.has_labels},
                  {"num_truncated", num_truncated_},
                  {"extent",
                   {{"longest", extent_.longest},
                    {"largest_id", extent_.largest_id},
                    {"largest_type", extent_.largest_type}}},
                  {"digests",
                   {{"input_ids", input_ids_hash_.value()},
                    {"token_type_ids", token_type_ids_hash_.value()},
                    {"scores", scores_hash_.value()}}},
                  {"task", task}});
}

TokenizedDataset OpenDatasetFile(const std::string& path) {
  const auto file = std::make_shared<const RowFile>(path);
  const ColumnFile& columns = file->columns();
  TokenizedDataset dataset;
  dataset.file = file;
  try {
    const nlohmann::json& about = columns.about();
    dataset.kind = static_cast<LabelKind>(GetWholeNumber<int>(about.at("kind")));
    dataset.has_labels = about.at("has_labels");
    dataset.num_labels = GetWholeNumber<int64_t>(about.at("num_labels"));
    dataset.num_truncated = GetWholeNumber<int64_t>(about.at("num_truncated"));
    DatasetFileExtent(dataset);
    DatasetFileTask(dataset);
  } catch (const nlohmann::json::exception& e) {
    throw columns.Damaged(e.what());
  }
  {
    const auto lengths = columns.ReadWhole<uint32_t>("lengths");
    dataset.offsets.reserve(lengths.size() + 1);
    for (const uint32_t length : lengths)
      dataset.offsets.push_back(dataset.offsets.back() + int64_t{length});
  }
  const auto has_size = [&](const char* name, int64_t rows, int64_t width = 1) {
    const Column* column = columns.Find(name);
    int64_t size = 0;
    return column != nullptr && width >= 0 && !__builtin_mul_overflow(rows, width, &size) &&
           column->size == size;
  };
  bool fits = has_size("input_ids", dataset.num_tokens()) && has_size("row_checks", dataset.size());
  if (columns.Find("token_type_ids") != nullptr)
    fits = fits && has_size("token_type_ids", dataset.num_tokens());
  if (dataset.has_labels) {
    switch (dataset.kind) {
      case LabelKind::kSingleLabel:
        dataset.classes = columns.ReadWhole<int64_t>("labels");
        fits = fits && std::ssize(dataset.classes) == dataset.size();
        break;
      case LabelKind::kRegression:
        dataset.scores = columns.ReadWhole<float>("labels");
        fits = fits && std::ssize(dataset.scores) == dataset.size();
        break;
      case LabelKind::kMultiLabel:
        fits = fits && has_size("label_flags", dataset.size(), dataset.num_labels);
        break;
      default:
        fits = false;
    }
  }
  if (columns.Find("sample_weights") != nullptr) {
    dataset.sample_weights = columns.ReadWhole<float>("sample_weights");
    fits = fits && std::ssize(dataset.sample_weights) == dataset.size();
  }
  if (!fits) throw columns.Damaged("its columns do not fit each other");
  return dataset;
}

const nlohmann::json& DatasetFileTask(const TokenizedDataset& dataset) {
  return dataset.file->columns().about().at("task");
}

std::optional<std::vector<int64_t>> DatasetFileColumn(const TokenizedDataset& dataset,
                                                      const std::string& name) {
  const ColumnFile& columns = dataset.file->columns();
  if (columns.Find(name) == nullptr) return std::nullopt;
  auto values = columns.ReadWhole<int64_t>(name);
  if (std::ssize(values) != dataset.size())
    throw columns.Damaged("its columns do not fit each other");
  return values;
}

DatasetExtent DatasetFileExtent(const TokenizedDataset& dataset) {
  const nlohmann::json& extent = dataset.file->columns().about().at("extent");
  return {.longest = GetWholeNumber<int64_t>(extent.at("longest")),
          .largest_id = GetWholeNumber<int64_t>(extent.at("largest_id")),
          .largest_type = GetWholeNumber<int64_t>(extent.at("largest_type"))};
}

}  // namespace lathe
