// A model's outputs for a whole dataset, and what Trainer reports about them.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/data/datasets/dataset.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/models/pretrained.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

struct Evaluation {
  std::vector<float> logits;  // [n, num_labels], in the dataset's order
  double loss = 0;            // mean over samples; 0 without labels
  double seconds = 0;
  int64_t batches = 0;
  bool complete = true;  // false if Ctrl-C ended it: then there are no logits
};

// Runs in evaluation mode without gradients and leaves the model in evaluation mode. Each process
// computes its shares; all get the whole.
Evaluation Evaluate(Accelerator& accelerator, SequenceClassifier& model,
                    std::shared_ptr<const TokenizedDataset> dataset,
                    const FinetuneArguments& options, const std::string& title);

// "the logits of test sample 3 are not finite", where `data` is "test", or what else cannot be
// used; empty if nothing.
std::string FirstNotFinite(const Evaluation& evaluation, int64_t num_labels,
                           const std::string& data);

// eval_loss, eval_<GLUE's metrics>, eval_runtime, eval_samples_per_second, eval_steps_per_second,
// eval_samples.
nlohmann::json EvalMetrics(const Evaluation& evaluation, const TokenizedDataset& dataset);

// "index\tprediction\tlogit_<label>..." and one line for each sample.
std::string PredictionTable(const Evaluation& evaluation, const LabelSet& labels,
                            const std::vector<std::string>& label_names);

}  // namespace lathe
