#include "lathe/apps/lathe/predictor.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "lathe/core/autograd.h"
#include "lathe/core/base/error.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/gemm.h"
#include "lathe/core/text/terminal_text.h"
#include "lathe/data/metrics/metrics.h"
#include "lathe/data/metrics/probabilities.h"
#include "lathe/models/config/decision_rule_config.h"
#include "lathe/models/config/problem_type.h"
#include "lathe/models/config/vocabulary_size.h"
#include "lathe/models/weights/load_weights.h"
#include "lathe/train/evaluation.h"
#include "lathe/train/task/sequence_length.h"

namespace lathe {

std::shared_ptr<SequenceClassifier> LoadTrainedClassifier(const std::string& dir) {
  try {
    auto model = AutoModelForSequenceClassification::FromPretrained(dir);
    CheckTrained(*model, dir);
    const std::vector<std::string>& unused = model->load_report().unexpected;
    if (!unused.empty()) {
      std::cerr << "note: " << dir << ": the checkpoint has " << unused.size()
                << (unused.size() == 1 ? " tensor" : " tensors")
                << " that the model lacks, such as " << TerminalText(unused.front()) << std::endl;
    }
    return model;
  } catch (const Error& e) {
    // Only a training program could let a parameter of another shape start fresh, so the
    // error's own hint would mislead here.
    if (e.detail<MismatchedSize>() == nullptr) throw;
    throw e.WithHint(kMixedFilesHint);
  }
}

void CheckTrained(const SequenceClassifier& model, const std::string& dir) {
  const LoadReport& report = model.load_report();
  if (!report.fresh_head.empty()) {
    throw InvalidArgument(dir + ": the model has no trained classifier (" +
                              report.fresh_head.front() + " is missing)",
                          "train one with finetune");
  }
  if (!report.missing.empty()) {
    const size_t count = report.missing.size();
    throw InvalidArgument(dir + ": the checkpoint lacks " + std::to_string(count) +
                              (count == 1 ? " parameter, " : " parameters, the first is ") +
                              report.missing.front(),
                          kMixedFilesHint);
  }
}

Predictor::Predictor(PredictorOptions options)
    : options_(std::move(options)),
      model_(LoadTrainedClassifier(options_.model_dir)),
      tokenizer_(AutoTokenizer::FromPretrained(options_.model_dir)),
      names_(model_->config().label_names()),
      vocab_size_(model_->config().GetInt("vocab_size", tokenizer_->vocab_size())),
      kind_(OutputKind(model_->config().problem_type(), model_->config().num_labels())),
      rule_(ReadDecisionRule(model_->config())),
      max_length_(model_->max_length()) {
  CheckVocabularySize(*tokenizer_, model_->config());
  CheckMaxSeqLength(*tokenizer_, options_.pairs, options_.max_seq_length);
  for (const int64_t limit : {tokenizer_->model_max_length(), options_.max_seq_length}) {
    if (limit > 0) max_length_ = std::min(max_length_, limit);
  }
  model_->To(ChooseDevice(options_.device));
  SetPrecision();
  model_->Eval();
}

void Predictor::SetPrecision() {
  const std::string& precision = options_.mixed_precision;
  if (precision == "fp16" && model_->device().is_cpu())
    throw InvalidArgument("--mixed_precision fp16 needs a GPU", "use bf16 or no");
  const std::string note = SlowPrecisionNote(precision, model_->device());
  if (!note.empty()) std::cerr << "note: " << note << '\n';
  if (precision == "bf16") model_->SetComputeDType(DType::kBF16);
  if (precision == "fp16") model_->SetComputeDType(DType::kF16);
}

void Predictor::Add(const TextPair& text, const std::string& where) {
  Encoding encoding = EncodeAt(where, *tokenizer_, text, max_length_);
  for (const int32_t id : encoding.input_ids) {
    if (id < 0 || id >= vocab_size_) {
      throw InvalidArgument(where + ": token \"" + tokenizer_->IdToToken(id) + "\" has id " +
                                std::to_string(id) + " but the model's vocab_size is " +
                                std::to_string(vocab_size_),
                            kMixedFilesHint);
    }
  }
  where_.push_back(where);
  input_ids_.push_back(std::move(encoding.input_ids));
  token_type_ids_.push_back(std::move(encoding.token_type_ids));
}

std::vector<Prediction> Predictor::Compute() {
  std::vector<Prediction> predictions;
  Compute(&predictions);
  return predictions;
}

void Predictor::Compute(std::vector<Prediction>* predictions) {
  if (input_ids_.empty()) return;
  NoGradGuard no_grad;
  const auto logits =
      model_->Forward(Batch::Pack(input_ids_, token_type_ids_)).logits.ToVector<float>();
  input_ids_.clear();
  token_type_ids_.clear();
  const std::vector<std::string> where = std::exchange(where_, {});
  for (size_t i = 0; i < where.size(); ++i) {
    predictions->push_back(
        PredictionOf(std::span(logits).subspan(i * names_.size(), names_.size()), where[i]));
  }
}

Prediction Predictor::PredictionOf(std::span<const float> logits, const std::string& where) const {
  if (!std::all_of(logits.begin(), logits.end(), [](float v) { return std::isfinite(v); })) {
    throw InvalidArgument(where + ": the logits are not finite; the weights in " +
                              options_.model_dir + " are damaged",
                          "train the model again, at a lower learning rate");
  }
  if (kind_ == LabelKind::kRegression) return {.labels = {0}, .scores = {logits[0]}};
  const auto width = static_cast<int64_t>(logits.size());
  Prediction prediction{
      .labels = {}, .scores = Probabilities(kind_, width, logits, rule_.temperature).OfSample(0)};
  if (kind_ == LabelKind::kSingleLabel) {
    prediction.labels = {static_cast<size_t>(ArgMax(logits, width)[0])};
    return prediction;
  }
  const std::vector<uint8_t> predicted = PredictedLabels({.kind = kind_,
                                                          .num_labels = width,
                                                          .logits = {logits.begin(), logits.end()},
                                                          .rule = rule_});
  for (size_t c = 0; c < predicted.size(); ++c) {
    if (predicted[c] != 0) prediction.labels.push_back(c);
  }
  return prediction;
}

double SixDigits(double value) { return std::strtod(ProbabilityText(value).c_str(), nullptr); }

nlohmann::ordered_json PredictionJson(const Prediction& prediction, LabelKind kind,
                                      const std::vector<std::string>& names, bool all_scores) {
  nlohmann::ordered_json json;
  if (kind == LabelKind::kMultiLabel) {
    json = {{"labels", nlohmann::ordered_json::array()},
            {"scores", nlohmann::ordered_json::object()}};
    for (const size_t c : prediction.labels) {
      json["labels"].push_back(names[c]);
      json["scores"][names[c]] = SixDigits(prediction.scores[c]);
    }
  } else {
    const size_t best = prediction.labels.front();
    json = {{"label", names[best]}, {"score", SixDigits(prediction.scores[best])}};
  }
  if (all_scores) {
    json["scores"] = nlohmann::ordered_json::object();
    for (size_t c = 0; c < names.size(); ++c)
      json["scores"][names[c]] = SixDigits(prediction.scores[c]);
  }
  return json;
}

}  // namespace lathe
