#include "lathe/apps/lathe/prediction_rows.h"

#include <absl/status/status.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/utf8.h"
#include "lathe/train/evaluation.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Returns the file's extension in lower case, with its point.
std::string FormatOf(const std::string& path) {
  std::string extension = std::filesystem::path(path).extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return extension == ".json" ? ".jsonl" : extension;
}

// Returns the value as a cell of CSV or TSV.
std::string CellText(const Json& value) {
  return value.is_string() ? value.get<std::string>() : DumpJson(value);
}

std::string CsvField(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

// Joins cells to a line of CSV or TSV.
std::string Line(const std::vector<std::string>& cells, const std::string& format) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) line += format == ".csv" ? ',' : '\t';
    line += format == ".csv" ? CsvField(cells[i]) : TableCell(cells[i]);
  }
  return line + '\n';
}

}  // namespace

void PredictionRows::CheckPaths(const std::vector<std::string>& inputs, const std::string& output) {
  const std::string format = FormatOf(inputs.at(0));
  for (const std::string& input : inputs) {
    const std::string other = FormatOf(input);
    if (other != ".csv" && other != ".tsv" && other != ".jsonl") {
      throw UsageError(input + ": rows can't be given back in this format",
                       "leave --output out, or make a .csv, .tsv, .json or .jsonl file of it");
    }
    if (other != format) {
      throw UsageError(
          input + ": --output needs files of one format, and that of " + inputs[0] + " is another",
          "leave --output out, or predict the files one by one");
    }
  }
  if (format != FormatOf(output)) {
    throw UsageError(output + ": --output must have the format of " + inputs[0],
                     "let its name end in " + format);
  }
  if (std::filesystem::is_directory(output)) {
    throw InvalidArgument(output + ": is a folder but --output must be a file",
                          "name a file in it");
  }
}

PredictionRows::PredictionRows(const std::vector<std::string>& inputs, std::string output,
                               Options options)
    : output_(std::move(output)), format_(FormatOf(output_)), options_(std::move(options)) {
  CheckPaths(inputs, output_);
}

void PredictionRows::Open(const std::string& temporary, const TextTable& block) {
  columns_ = block.names;
  CheckNames(block);
  writer_.emplace(temporary, output_);
  if (format_ == ".jsonl") return;
  std::vector<std::string> header = columns_;
  for (const auto& [name, value] : CellsOf(AnyPrediction())) header.push_back(name);
  const std::string line = Line(header, format_);
  writer_->Write(line.data(), line.size());
}

Prediction PredictionRows::AnyPrediction() const {
  return {.labels = {0}, .scores = std::vector<double>(options_.names.size())};
}

void PredictionRows::CheckNames(const TextTable& block) const {
  for (const auto& [name, value] : CellsOf(AnyPrediction())) {
    if (!block.has(name)) continue;
    throw InvalidArgument(block.path + ": there is a column \"" + name + "\" already",
                          "rename or remove it, since the predictions get this name");
  }
}

void PredictionRows::Write(const TextTable& block, int64_t first,
                           std::span<const Prediction> predictions) {
  std::string text;
  std::vector<const std::vector<std::string>*> columns;
  if (format_ == ".jsonl") {
    CheckNames(block);  // an object may have keys that those before it lack
  } else {
    for (const std::string& name : columns_) columns.push_back(&block.column(name));
  }
  for (size_t i = 0; i < predictions.size(); ++i) {
    const int64_t row = first + static_cast<int64_t>(i);
    const Cells added = CellsOf(predictions[i]);
    if (format_ == ".jsonl") {
      text += JsonRow(block, row, added) + '\n';
      continue;
    }
    std::vector<std::string> cells;
    for (const auto* column : columns) cells.push_back((*column)[static_cast<size_t>(row)]);
    for (const auto& [name, value] : added) cells.push_back(CellText(value));
    text += Line(cells, format_);
  }
  writer_->Write(text.data(), text.size());
}

void PredictionRows::Close() { writer_->Close(); }

PredictionRows::Cells PredictionRows::CellsOf(const Prediction& prediction) const {
  const std::vector<std::string>& names = options_.names;
  if (options_.kind == LabelKind::kRegression)
    return {{"prediction", SixDigits(prediction.scores.front())}};
  Cells cells;
  if (options_.kind == LabelKind::kMultiLabel) {
    Json labels = Json::array(), probabilities = Json::array();
    for (const size_t c : prediction.labels) {
      labels.push_back(names[c]);
      probabilities.push_back(SixDigits(prediction.scores[c]));
    }
    cells = {{"prediction", labels}, {"probability", probabilities}};
  } else {
    const size_t best = prediction.labels.front();
    cells = {{"prediction", names[best]}, {"probability", SixDigits(prediction.scores[best])}};
  }
  for (size_t c = 0; options_.all_scores && c < names.size(); ++c)
    cells.emplace_back("probability_" + names[c], SixDigits(prediction.scores[c]));
  return cells;
}

std::string PredictionRows::JsonRow(const TextTable& block, int64_t row, const Cells& added) {
  std::string line = RawLine(block.path, block.lines[static_cast<size_t>(row)]);
  line.erase(line.find_last_not_of(" \t\r") + 1);
  const size_t begin = line.find_first_not_of(" \t");
  if (begin == std::string::npos || line[begin] != '{' || line.back() != '}') {
    throw InvalidArgument(block.Where(row) + ": --output needs one whole object on each line",
                          "write the file as JSON lines, or leave --output out");
  }
  line.pop_back();
  for (const auto& [name, value] : added)
    line += ',' + DumpJson(Json(name)) + ':' + DumpJson(value);
  return line + '}';
}

std::string PredictionRows::RawLine(const std::string& path, int64_t line) {
  if (path != raw_path_ || line <= line_) {  // another file, or the same one once more
    raw_ = std::ifstream(path, std::ios::binary);
    if (!raw_) throw FileError(path, errno);
    raw_path_ = path;
    line_ = 0;
  }
  std::string text;
  while (line_ < line) {
    if (!std::getline(raw_, text)) {
      throw FileError(absl::StatusCode::kDataLoss, path,
                      "the file has fewer lines than when it was read at first");
    }
    if (++line_ == 1 && text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  }
  return ReplaceInvalidUtf8(text);
}

}  // namespace lathe
