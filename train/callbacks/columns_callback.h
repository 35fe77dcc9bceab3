// Keeps the columns of the training beside the model, for later evaluations and predictions.
#pragma once

#include <string>
#include <utility>

#include "lathe/train/callback.h"
#include "lathe/train/rows/trained_columns.h"

namespace lathe {

// Writes kTrainedColumns into the output folder and into each checkpoint.
class ColumnsCallback : public Callback {
 public:
  explicit ColumnsCallback(TrainedColumns columns) : columns_(std::move(columns)) {}

  bool SetsControl() const override { return false; }
  void OnSave(const TrainingArguments& arguments, const TrainerState& state,
              TrainerControl& control, const std::string& dir) override;

 private:
  TrainedColumns columns_;
};

}  // namespace lathe
