// Writes a model card, README.md, beside the trained model (train/card/model_card.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lathe/train/callback.h"
#include "lathe/train/card/model_card.h"

namespace lathe {

// The main process writes the card into arguments.output_dir after the last save; checkpoints get
// none, as with Transformers' Trainer. A README.md that people have edited, or that is none of
// Lathe's cards, stays as it is, and one warning says so. A card that can't be written is a
// warning, too. When a new model is saved, OutputDir::Replace removes an earlier card with its
// model, unless people have edited it.
class ModelCardCallback : public Callback {
 public:
  // `facts` has what the Trainer doesn't know: the base model, the names of the data. The callback
  // fills in the rest, except hyperparameters if there are any.
  explicit ModelCardCallback(ModelCardFacts facts = {});

  bool SetsControl() const override { return false; }
  void OnTrainEnd(const TrainingArguments& arguments, const TrainerState& state,
                  TrainerControl& control) override;

  // Writes the card with the metrics of an evaluation after the training. The main process calls
  // it. Returns warnings, one line each.
  std::vector<std::string> Write(const TrainingArguments& arguments, const TrainerState& state,
                                 const nlohmann::json& evaluation);

 private:
  ModelCardFacts facts_;
  bool warned_ = false;
};

}  // namespace lathe
