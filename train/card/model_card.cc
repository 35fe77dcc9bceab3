#include "lathe/train/card/model_card.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/checkpoint/sha256.h"
#include "lathe/core/json/json_text.h"
#include "lathe/core/version.h"
#include "lathe/train/card/yaml_text.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

// No name in the front matter can hold this, because YamlText leaves no end of a line.
constexpr std::string_view kDigestMark = "\n<!-- digest ";
constexpr size_t kDigestSize = 64;
const std::string kNoDigest(kDigestSize, '0');

// Metrics that the Hub knows, by Lathe's names.
constexpr std::pair<std::string_view, std::string_view> kHubMetrics[] = {
    {"accuracy", "accuracy"},
    {"f1", "f1"},
    {"precision", "precision"},
    {"recall", "recall"},
    {"mse", "mse"},
    {"matthews_correlation", "matthews_correlation"},
    {"pearson", "pearsonr"},
    {"spearmanr", "spearmanr"}};

bool IsDefined(const Json& metric) {
  return metric.is_number() && std::isfinite(metric.get<double>());
}

// Returns the text in one line, as a title or a cell of a table needs it.
std::string OneLine(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c >= 0 && c < ' '; }, ' ');
  return text;
}

// Returns "Matthews Correlation" for "eval_matthews_correlation".
std::string Title(std::string name) {
  if (name.starts_with("eval_")) name.erase(0, 5);
  bool begins = true;
  for (char& c : name) {
    if (begins && c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    begins = c == '_';
    if (begins) c = ' ';
  }
  return OneLine(name);
}

// Returns a number with at most four decimals, or four digits if it is small.
std::string Rounded(const Json& value) {
  if (value.is_null() || (value.is_number() && !IsDefined(value))) return "undefined";
  const std::string text = value.is_string() ? value.get<std::string>() : DumpJson(value);
  const size_t point = text.find('.');
  if (!value.is_number_float() || point == std::string::npos || text.size() - point <= 5)
    return OneLine(text);
  const double number = value.get<double>();
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, std::abs(number) < 1e-3 ? "%.4g" : "%.4f", number);
  return buffer;
}

// Returns the metrics of an evaluation that tell of the model, by their titles and with the loss
// first. The others tell of speed and data.
std::vector<std::pair<std::string, Json>> ResultsOf(const Json& evaluation) {
  std::vector<std::pair<std::string, Json>> results;
  for (const auto& [name, value] : evaluation.items()) {
    const bool other = !name.starts_with("eval_") || name == "eval_runtime" ||
                       name == "eval_samples" || name.ends_with("_per_second");
    if (other || (!value.is_number() && !value.is_null())) continue;
    const auto place = name == "eval_loss" ? results.begin() : results.end();
    results.emplace(place, Title(name), value);
  }
  return results;
}

std::string FrontMatter(const ModelCardFacts& facts) {
  std::string tags, values;
  for (const auto& [name, tag] : kHubMetrics) {
    const Json value = facts.evaluation.is_object()
                           ? facts.evaluation.value("eval_" + std::string(name), Json())
                           : Json();
    if (!IsDefined(value)) continue;
    tags += "- " + std::string(tag) + "\n";
    values += "    - name: " + Title(std::string(name)) + "\n      type: " + std::string(tag) +
              "\n      value: " + YamlNumber(value.get<double>()) + "\n";
  }
  std::string text = "---\nlibrary_name: transformers\n";
  if (!facts.base_model.empty() && !facts.base_is_local)
    text += "base_model: " + YamlText(facts.base_model) + "\n";
  text += "tags:\n- generated_from_trainer\n- lathe\n";
  if (!tags.empty()) text += "metrics:\n" + tags;
  text += "model-index:\n- name: " + YamlText(facts.model_name) + "\n";
  // The Hub refuses a result without a name of the data.
  if (values.empty() || facts.evaluation_data.empty()) return text + "  results: []\n---\n";
  std::string type = std::filesystem::path(facts.evaluation_data).extension().string();
  type = type.size() > 1 ? type.substr(1) : "text";
  return text + "  results:\n  - task:\n      name: Text Classification\n" +
         "      type: text-classification\n    dataset:\n      name: " +
         YamlText(facts.evaluation_data) + "\n      type: " + YamlText(type) + "\n    metrics:\n" +
         values + "---\n";
}

std::string Origin(const ModelCardFacts& facts) {
  const std::string base = OneLine(facts.base_model);
  std::string text = base.empty() ? "This model was trained from fresh weights"
                     : facts.base_is_local
                         ? "This model is a fine-tuned version of the local model `" + base + "`"
                         : "This model is a fine-tuned version of [" + base +
                               "](https://huggingface.co/" + base + ")";
  text += facts.training_data.empty() ? " on an unknown dataset.\n"
                                      : " on `" + OneLine(facts.training_data) + "`.\n";
  if (!facts.evaluation.is_object()) return text;
  text += "It achieves the following results on the evaluation set:\n";
  for (const auto& [name, value] : ResultsOf(facts.evaluation))
    text += "- " + name + ": " + Rounded(value) + "\n";
  return text;
}

using Row = std::vector<std::string>;

// Returns a row for each evaluation while training, with the last loss that was logged before it.
// The first row names the columns.
std::vector<Row> EvaluationRows(const Json& log_history) {
  std::vector<Row> rows;
  std::string loss = "No log";
  for (const Json& entry : log_history) {
    if (entry.contains("loss")) loss = Rounded(entry.at("loss"));
    if (!entry.contains("eval_loss")) continue;
    Row names = {"Training Loss", "Epoch", "Step"};
    Row row = {loss, Rounded(entry.value("epoch", Json())), Rounded(entry.value("step", Json()))};
    for (const auto& [name, value] : ResultsOf(entry)) {
      names.push_back(name == "Loss" ? "Validation Loss" : name);
      row.push_back(Rounded(value));
    }
    if (rows.empty()) rows.push_back(names);
    row.resize(rows[0].size());
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string Table(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows[0].size());
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string table;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < widths.size(); ++i)
      table += "| " + rows[r][i] + std::string(widths[i] - rows[r][i].size() + 1, ' ');
    table += "|\n";
    if (r > 0) continue;
    for (const size_t width : widths) table += "|:" + std::string(width, '-') + ":";
    table += "|\n";
  }
  return table;
}

std::string Procedure(const ModelCardFacts& facts) {
  std::string text = "\n## Training procedure\n\n### Training hyperparameters\n\n";
  for (const auto& [name, value] : facts.hyperparameters.items()) {
    text += "- " + name + ": " +
            OneLine(value.is_string() ? value.get<std::string>() : DumpJson(value)) + "\n";
  }
  const std::vector<Row> rows = EvaluationRows(facts.log_history);
  if (!rows.empty()) text += "\n### Training results\n\n" + Table(rows);
  return text + "\n### Framework versions\n\n- Lathe " + kVersion + "\n";
}

// Returns the place of the digest in a card; nullopt if there is none.
std::optional<size_t> PlaceOfDigest(const std::string& text) {
  const size_t mark = text.find(kDigestMark);
  if (mark == std::string::npos || text.size() - mark < kDigestMark.size() + kDigestSize)
    return std::nullopt;
  return mark + kDigestMark.size();
}

}  // namespace

std::string ModelCard(const ModelCardFacts& facts) {
  constexpr char kToWrite[] = "\n\nThis part is still to be written.\n";
  std::string text = FrontMatter(facts);
  const std::string comment = std::string(kDigestMark) + kNoDigest +
                              "\nLathe wrote this card from what its Trainer knew. Please read it, "
                              "correct it and write what is missing.\nA later training into this "
                              "folder replaces the card only if nothing in it was changed. -->\n";
  const size_t begin = text.size() + comment.find(kNoDigest);
  text += comment + "\n# " + OneLine(facts.model_name) + "\n\n" + Origin(facts);
  for (const char* heading :
       {"Model description", "Intended uses & limitations", "Training and evaluation data"})
    text += std::string("\n## ") + heading + kToWrite;
  text += Procedure(facts);
  return text.replace(begin, kDigestSize, Sha256(text));
}

bool IsUneditedCard(const std::string& text) {
  const std::optional<size_t> place = PlaceOfDigest(text);
  if (!place) return false;
  std::string blank = text;
  blank.replace(*place, kDigestSize, kNoDigest);
  return Sha256(blank) == text.substr(*place, kDigestSize);
}

bool HasUneditedCard(const std::string& path) {
  std::error_code code;
  if (!std::filesystem::is_regular_file(path, code)) return false;
  try {
    return IsUneditedCard(ReadFile(path));
  } catch (const Error&) {
    return false;
  }
}

bool HasForeignCard(const std::string& path) {
  std::error_code code;
  const auto status = std::filesystem::symlink_status(path, code);
  return status.type() != std::filesystem::file_type::not_found && !HasUneditedCard(path);
}

}  // namespace lathe
