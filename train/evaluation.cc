#include "lathe/train/evaluation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "lathe/core/autograd.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/datasets/data_loader.h"
#include "lathe/data/metrics/probabilities.h"
#include "lathe/models/config/decision_rule_config.h"
#include "lathe/train/frozen_encoder.h"
#include "lathe/train/support/interrupt.h"

namespace lathe {
namespace {

// Returns the shortest text that reads back as the same float.
std::string ShortestText(float value) {
  char buffer[32];
  for (int digits = 6; digits <= 9; ++digits) {
    std::snprintf(buffer, sizeof buffer, "%.*g", digits, static_cast<double>(value));
    if (std::strtof(buffer, nullptr) == value) break;
  }
  return buffer;
}

// Tells whether a signal has told this rank or another one to end. It learns of another rank's
// signal within half a second.
class SharedInterrupt {
 public:
  explicit SharedInterrupt(ProcessGroup& group) : group_(group) {}

  bool HasCome() {
    if (Interrupted()) {
      group_.PostMessage(kKey, "");
      return true;
    }
    const auto now = std::chrono::steady_clock::now();
    if (group_.size() == 1 || now < next_look_) return false;
    next_look_ = now + std::chrono::milliseconds(500);
    return group_.FindMessage(kKey, std::chrono::milliseconds(0)).has_value();
  }

 private:
  static constexpr char kKey[] = "an evaluation is to end";
  ProcessGroup& group_;
  std::chrono::steady_clock::time_point next_look_;  // at first long ago
};

// Gathers the rows of all ranks and puts each where its sample lies in the dataset.
Evaluation Assemble(Accelerator& accelerator, const TokenizedDataset& dataset,
                    const std::vector<float>& logits, const std::vector<int64_t>& indices,
                    double loss_sum, double weight, bool complete) {
  Evaluation result;
  const Tensor missing = accelerator.Reduce(Tensor::FromVector<int64_t>({complete ? 0 : 1}));
  result.complete = missing.Item() == 0;
  if (!result.complete) return result;
  const double sum = accelerator.Reduce(Tensor::FromVector<double>({loss_sum})).Item();
  result.loss = weight > 0 ? sum / weight : 0;
  const Tensor all_logits = accelerator.Gather(Tensor::FromVector(logits));
  const Tensor all_indices = accelerator.Gather(Tensor::FromVector(indices));
  result.logits.resize(static_cast<size_t>(all_logits.numel()));
  if (dataset.size() == 0) return result;
  const int64_t width = all_logits.numel() / dataset.size();
  const std::span<const int64_t> places = all_indices.values<int64_t>();
  for (size_t i = 0; i < places.size(); ++i) {
    std::copy_n(all_logits.data<float>() + static_cast<int64_t>(i) * width, width,
                result.logits.begin() + places[i] * width);
  }
  return result;
}

// Returns the model's weights of the dataset's classes; none if it has scores or several labels.
std::vector<float> ClassWeightsFor(const TokenizedDataset& dataset,
                                   const SequenceClassifier& model) {
  if (dataset.kind != LabelKind::kSingleLabel || !dataset.has_labels) return {};
  return model.loss_options().ClassWeights();
}

}  // namespace

Evaluation Evaluate(Accelerator& accelerator, SequenceClassifier& model,
                    std::shared_ptr<const TokenizedDataset> dataset,
                    const EvaluateOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const DecisionRule rule = ReadDecisionRule(model.config());
  model.Eval();
  NoGradGuard no_grad;
  DataLoader loader(dataset,
                    {.batch_size = options.per_device_batch_size * accelerator.num_processes(),
                     .even_tokens = true,
                     .class_weights = ClassWeightsFor(*dataset, model)});
  accelerator.Prepare(loader);
  if (options.on_begin) options.on_begin(loader.size());
  if (options.encodings != nullptr)
    options.encodings->Begin(accelerator, dataset, options.per_device_batch_size);
  std::vector<float> logits;
  std::vector<int64_t> indices;     // the samples that the logits belong to
  double loss_sum = 0, weight = 0;  // of this rank's samples, and of all ranks'
  int64_t batches = 0;
  struct Unread {
    SequenceClassifierOutput outputs;
    double weight;
  };
  std::vector<Unread> unread;
  const auto read = [&] {
    for (const auto& [outputs, of_batch] : unread) {
      const auto rows = outputs.logits.ToVector<float>();
      logits.insert(logits.end(), rows.begin(), rows.end());
      if (outputs.loss.defined() && of_batch > 0) loss_sum += outputs.loss.Item() * of_batch;
    }
    unread.clear();
  };
  SharedInterrupt interrupt(accelerator.group());
  // Reading waits for the device, so on a GPU it is done only now and then.
  const size_t most_unread = accelerator.device().is_cpu() ? 1 : 32;
  for (const Batch& batch : loader) {
    SequenceClassifierOutput outputs =
        options.encodings != nullptr ? model.Forward(options.encodings->Complete(model, batch))
                                     : model.Forward(batch);
    ++batches;
    weight += batch.share->global_weight;
    if (!batch.share->stand_in) {
      unread.push_back({{.loss = outputs.loss, .logits = outputs.logits, .hidden_states = {}},
                        batch.share->weight});
      indices.insert(indices.end(), batch.indices.begin(), batch.indices.end());
      if (unread.size() == most_unread) read();
    }
    if (options.on_batch) options.on_batch();
    if (interrupt.HasCome()) break;
  }
  read();
  if (options.encodings != nullptr && batches == loader.size()) options.encodings->End();
  Evaluation result =
      Assemble(accelerator, *dataset, logits, indices, loss_sum, weight, batches == loader.size());
  result.batches = batches;
  result.rule = rule;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

std::string FirstNotFinite(const Evaluation& evaluation, int64_t num_labels,
                           const std::string& data) {
  const auto bad = std::find_if_not(evaluation.logits.begin(), evaluation.logits.end(),
                                    [](float v) { return std::isfinite(v); });
  if (bad != evaluation.logits.end()) {
    return "the logits of " + data + " sample " +
           std::to_string((bad - evaluation.logits.begin()) / num_labels) + " are not finite";
  }
  if (std::isfinite(evaluation.loss)) return "";
  return "the " + data + " loss is " + (std::isnan(evaluation.loss) ? "NaN" : "Inf");
}

Predictions PredictionsOf(const Evaluation& evaluation, const TokenizedDataset& dataset) {
  return {.kind = dataset.kind,
          .num_labels = dataset.num_labels,
          .logits = evaluation.logits,
          .classes = dataset.classes,
          .scores = dataset.AllScores(),
          .rule = evaluation.rule};
}

MetricValues AllMetrics(const Predictions& predictions, const std::string& task) {
  MetricValues values = ComputeMetrics(predictions);
  if (!task.empty()) values.merge(ComputeMetrics(predictions, task));
  return values;
}

nlohmann::json EvalMetrics(const Evaluation& evaluation, const TokenizedDataset& dataset,
                           const std::string& task) {
  nlohmann::json json = {
      {"eval_loss", evaluation.loss},
      {"eval_samples", dataset.size()},
      {"eval_runtime", evaluation.seconds},
      {"eval_samples_per_second", static_cast<double>(dataset.size()) / evaluation.seconds},
      {"eval_steps_per_second", static_cast<double>(evaluation.batches) / evaluation.seconds}};
  const MetricValues values = AllMetrics(PredictionsOf(evaluation, dataset), task);
  for (const auto& [name, value] : values) json["eval_" + name] = value;
  return json;
}

std::vector<std::string> MetricNames(LabelKind kind, int64_t num_labels, const std::string& task) {
  TokenizedDataset nothing;
  nothing.kind = kind;
  nothing.num_labels = num_labels;
  constexpr size_t kPrefix = std::string_view("eval_").size();
  const nlohmann::json metrics = EvalMetrics({}, nothing, task);
  std::vector<std::string> names;
  for (const auto& [name, value] : metrics.items()) {
    const bool of_speed = name.ends_with("runtime") || name.find("samples") != std::string::npos ||
                          name.ends_with("per_second");
    if (!of_speed) names.push_back(name.substr(kPrefix));
  }
  return names;
}

std::string PredictionTable(const Evaluation& evaluation, const LabelSet& labels,
                            const std::vector<std::string>& label_names) {
  const int64_t columns = labels.num_labels();
  const bool regression = labels.kind() == LabelKind::kRegression;
  std::optional<Probabilities> probabilities;
  std::vector<std::string> predicted;
  if (!regression) {
    probabilities.emplace(labels.kind(), columns, evaluation.logits, evaluation.rule.temperature);
    predicted = PredictedNames({.kind = labels.kind(),
                                .num_labels = columns,
                                .logits = evaluation.logits,
                                .rule = evaluation.rule},
                               labels);
  }
  std::string table = "index\tprediction";
  for (const std::string& name : label_names) table += "\tlogit_" + TableCell(name);
  if (!regression) {
    for (const std::string& name : label_names) table += "\tprobability_" + TableCell(name);
  }
  table += '\n';
  const int64_t rows = std::ssize(evaluation.logits) / columns;
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = evaluation.logits.data() + i * columns;
    table += std::to_string(i) + '\t' +
             (regression ? ShortestText(row[0]) : TableCell(predicted[static_cast<size_t>(i)]));
    for (int64_t c = 0; c < columns; ++c) table += '\t' + ShortestText(row[c]);
    for (int64_t c = 0; c < columns && !regression; ++c)
      table += '\t' + ProbabilityText(probabilities->Of(i, c));
    table += '\n';
  }
  return table;
}

std::vector<std::string> PredictedNames(const Predictions& predictions, const LabelSet& labels) {
  std::vector<std::string> names;
  if (predictions.kind == LabelKind::kMultiLabel) {
    const std::vector<uint8_t> flags = PredictedLabels(predictions);
    const auto width = static_cast<size_t>(predictions.num_labels);
    for (size_t begin = 0; begin < flags.size(); begin += width)
      names.push_back(NamesOf(std::span(flags).subspan(begin, width), labels));
    return names;
  }
  for (const int64_t c : ArgMax(predictions.logits, predictions.num_labels))
    names.push_back(labels.names()[static_cast<size_t>(c)]);
  return names;
}

std::string NamesOf(std::span<const uint8_t> flags, const LabelSet& labels) {
  nlohmann::json names = nlohmann::json::array();
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i] != 0) names.push_back(labels.names()[i]);
  }
  return DumpJson(names);
}

std::string TableCell(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\t' || c == '\n' || c == '\r'; }, ' ');
  return text;
}

std::string ProbabilityText(double probability) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.6g", probability);
  return buffer;
}

}  // namespace lathe
