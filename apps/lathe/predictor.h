// Predictor: a trained classifier that takes texts one by one and computes them in batches.
//
//   Predictor predictor({.model_dir = "out"});
//   predictor.Add({.first = "a text"}, "text 1");
//   for (const Prediction& prediction : predictor.Compute()) ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lathe/apps/lathe/text_source.h"
#include "lathe/data/datasets/label_set.h"
#include "lathe/data/metrics/decision_rule.h"
#include "lathe/models/pretrained.h"

namespace lathe {

// What to do about a folder whose files don't fit each other.
inline constexpr char kMixedFilesHint[] =
    "the files in the folder belong to different models; copy the model again";

// Loads a classifier of a folder. Throws if it has no trained classifier or lacks parameters.
std::shared_ptr<SequenceClassifier> LoadTrainedClassifier(const std::string& dir);
// Throws if the loaded model of `dir` has parameters that no file gave it.
void CheckTrained(const SequenceClassifier& model, const std::string& dir);

struct PredictorOptions {
  std::string model_dir;
  bool pairs = false;          // texts come in pairs
  int64_t max_seq_length = 0;  // cut to so many tokens; 0: the model's limit
  std::string device = "auto", mixed_precision = "no";
};

struct Prediction {
  // The places of the predicted labels: one, or for several labels at once any number. A regression
  // has the place of its only output.
  std::vector<size_t> labels;
  std::vector<double> scores;  // the probability of each label; of a regression the value
};

class Predictor {
 public:
  // Throws for a model or options that can't be used.
  explicit Predictor(PredictorOptions options);

  // Takes a text, or a pair. `where` names its place in errors. Throws if the tokenizer or the
  // model can't take it.
  void Add(const TextPair& text, const std::string& where);
  int64_t num_pending() const { return static_cast<int64_t>(input_ids_.size()); }
  // Returns the predictions for all texts that were added since the last call, in their order.
  // Throws if one is not finite.
  std::vector<Prediction> Compute();
  // Does the same, and appends the predictions before it throws.
  void Compute(std::vector<Prediction>* predictions);

  LabelKind kind() const { return kind_; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  void SetPrecision();
  Prediction PredictionOf(std::span<const float> logits, const std::string& where) const;

  PredictorOptions options_;
  std::shared_ptr<SequenceClassifier> model_;
  std::shared_ptr<Tokenizer> tokenizer_;
  std::vector<std::string> names_;
  int64_t vocab_size_;
  LabelKind kind_;
  DecisionRule rule_;
  int64_t max_length_;
  std::vector<std::vector<int32_t>> input_ids_, token_type_ids_;
  std::vector<std::string> where_;  // where each text came from
};

// Returns the number with 6 significant digits.
double SixDigits(double value);

// Returns what a line of `lathe predict` says: {"label": ..., "score": ...}, or for several labels
// {"labels": [...], "scores": {...}} with those that are predicted. `all_scores` adds the scores of
// all labels.
nlohmann::ordered_json PredictionJson(const Prediction& prediction, LabelKind kind,
                                      const std::vector<std::string>& names, bool all_scores);

}  // namespace lathe
