// Trains a classifier with Trainer and a callback of its own, which stops once the model is good.
//   trainer MODEL_DIR TRAIN_FILE VALIDATION_FILE OUTPUT_DIR
#include <iostream>

#include "lathe/lathe.h"

class StopWhenAccurate : public lathe::Callback {
  void OnEvaluate(const lathe::TrainingArguments&, const lathe::TrainerState&,
                  lathe::TrainerControl& control, const nlohmann::json& metrics) override {
    if (metrics.at("eval_accuracy") >= 0.9) control.should_training_stop = true;
  }
};

int main(int argc, char** argv) try {
  if (argc != 5)
    throw lathe::InvalidArgument("expected MODEL_DIR TRAIN_FILE VALIDATION_FILE OUTPUT_DIR");
  const auto train = lathe::ReadTextTable(argv[2]), eval = lathe::ReadTextTable(argv[3]);
  const auto columns = lathe::ChooseTextColumns(train, {});
  const lathe::LabelSet labels = lathe::LabelSet::Infer({&train.column("label")});
  const auto tokenizer = lathe::AutoTokenizer::FromPretrained(argv[1]);
  const auto tokenize = [&](const lathe::TextTable& table) {
    return std::make_shared<lathe::TokenizedDataset>(
        lathe::Tokenize(table, columns, labels, *tokenizer, {.max_length = 128}));
  };

  lathe::TrainingArguments arguments;
  arguments.output_dir = argv[4];
  arguments.num_train_epochs = 20;
  arguments.learning_rate = 1e-3;
  arguments.eval_strategy = "epoch";
  lathe::Accelerator accelerator(lathe::AcceleratorOptionsOf(arguments));
  lathe::Trainer trainer(
      arguments, accelerator,
      {.model = lathe::AutoModelForSequenceClassification::FromPretrained(
           argv[1], {.label_names = labels.names()}),
       .train = tokenize(train),
       .evaluation = tokenize(eval),
       .tokenizer = tokenizer},
      {std::make_shared<lathe::ProgressCallback>(), std::make_shared<StopWhenAccurate>()});
  trainer.Train();
  accelerator.Print("stopped after step ", trainer.state().global_step);
} catch (const std::exception& e) {
  std::cerr << "error: " << e.what() << '\n';
  return 1;
}
