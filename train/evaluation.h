// Computes a model's outputs for a whole dataset, and what Trainer reports about them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "lathe/data/datasets/dataset.h"
#include "lathe/data/metrics/metrics.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/models/pretrained.h"

namespace lathe {

struct Evaluation {
  std::vector<float> logits;  // [n, num_labels], in the dataset's order
  // The model's loss, with its loss options: the mean over samples by their weights. 0 without
  // labels. Transformers' Trainer smooths the labels in its eval_loss, too.
  double loss = 0;
  double seconds = 0;
  int64_t batches = 0;
  bool complete = true;    // false if a signal ended it: then there are no logits
  DecisionRule rule = {};  // of the model: how its logits become predictions
};

class KeptEncodings;  // train/frozen_encoder.h

struct EvaluateOptions {
  int64_t per_device_batch_size = 64;
  // Called before the first batch and after each, on all ranks; either may be empty.
  std::function<void(int64_t num_batches)> on_begin = {};
  std::function<void()> on_batch = {};
  // Saves the encoder's work in later evaluations of a model whose encoder is frozen; may be null.
  KeptEncodings* encodings = nullptr;
};

// Runs the model in evaluation mode without gradients and leaves it in that mode. Each rank
// computes its shares, and all ranks get the whole result.
Evaluation Evaluate(Accelerator& accelerator, SequenceClassifier& model,
                    std::shared_ptr<const TokenizedDataset> dataset,
                    const EvaluateOptions& options = {});

// Says which number is not finite: "the logits of test sample 3 are not finite", if `data` is
// "test", or "the test loss is NaN". Returns "" if all are finite.
std::string FirstNotFinite(const Evaluation& evaluation, int64_t num_labels,
                           const std::string& data);

// Returns the outputs beside the dataset's labels, as the functions of data/metrics take them.
Predictions PredictionsOf(const Evaluation& evaluation, const TokenizedDataset& dataset);

// Returns the metrics that need no task, and those of `task`, a GLUE task or "" (ComputeMetrics).
MetricValues AllMetrics(const Predictions& predictions, const std::string& task = "");

// Returns eval_loss, eval_<AllMetrics>, eval_runtime, eval_samples_per_second,
// eval_steps_per_second and eval_samples.
nlohmann::json EvalMetrics(const Evaluation& evaluation, const TokenizedDataset& dataset,
                           const std::string& task = "");

// Returns the names of these metrics without "eval_", but for speeds and counts: accuracy, loss,
// ...
std::vector<std::string> MetricNames(LabelKind kind, int64_t num_labels,
                                     const std::string& task = "");

// Returns the header "index\tprediction\tlogit_<label>...\tprobability_<label>..." and a line for
// each sample. A regression has no probabilities. Several labels are as NamesOf gives them.
std::string PredictionTable(const Evaluation& evaluation, const LabelSet& labels,
                            const std::vector<std::string>& label_names);

// Returns the name of what each sample's logits predict: its class, or all of its labels as
// NamesOf gives them. The labels of the predictions count for nothing. For classifiers.
std::vector<std::string> PredictedNames(const Predictions& predictions, const LabelSet& labels);
// Returns the names of the labels whose flag is set, as an array in JSON: ["a","b"].
std::string NamesOf(std::span<const uint8_t> flags, const LabelSet& labels);

// Returns the text without tabs and line breaks, which would break a table.
std::string TableCell(std::string text);
// Returns a probability with 6 significant digits.
std::string ProbabilityText(double probability);

}  // namespace lathe
