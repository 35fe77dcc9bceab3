#include "with_trainer.h"

#include <iostream>
#include <memory>

#include "lathe/lathe.h"

namespace app {
namespace {

class StopAtLoss : public lathe::Callback {
 public:
  explicit StopAtLoss(double loss) : loss_(loss) {}
  void OnStepEnd(const lathe::TrainingArguments&, const lathe::TrainerState& state,
                 lathe::TrainerControl& control) override {
    if (state.loss && *state.loss < loss_) control.should_training_stop = true;
  }

 private:
  double loss_;
};

// Returns n sequences of two tokens. The first token is the class.
std::shared_ptr<lathe::TokenizedDataset> MakeData(int32_t n) {
  auto data = std::make_shared<lathe::TokenizedDataset>();
  data->has_labels = true;
  data->num_labels = 2;
  for (int32_t i = 0; i < n; ++i) {
    data->input_ids.insert(data->input_ids.end(), {i % 2, 2 + i % 7});
    data->token_type_ids.resize(data->input_ids.size());
    data->offsets.push_back(static_cast<int64_t>(data->input_ids.size()));
    data->classes.push_back(i % 2);
  }
  return data;
}

}  // namespace

bool LearnsWithTrainer() {
  const auto config = lathe::PretrainedConfig::FromJson({{"model_type", "bert"},
                                                         {"vocab_size", 10},
                                                         {"hidden_size", 16},
                                                         {"num_hidden_layers", 1},
                                                         {"num_attention_heads", 2},
                                                         {"intermediate_size", 32},
                                                         {"max_position_embeddings", 8}});
  lathe::TrainingArguments arguments;
  arguments.learning_rate = 1e-2;
  arguments.num_train_epochs = 50;
  arguments.disable_tqdm = true;
  lathe::Accelerator accelerator(lathe::AcceleratorOptionsOf(arguments));
  lathe::Trainer trainer(
      arguments, accelerator,
      {.model = lathe::AutoModelForSequenceClassification::FromConfig(config, {.num_labels = 2}),
       .train = MakeData(64)},
      {std::make_shared<lathe::ProgressCallback>(), std::make_shared<StopAtLoss>(0.1)});
  trainer.Train();
  const lathe::TrainerState& state = trainer.state();
  std::cout << "embedding: the Trainer stopped after step " << state.global_step << " of "
            << state.max_steps << ", loss " << *state.loss << '\n';
  return *state.loss < 0.1 && state.global_step < state.max_steps;
}

}  // namespace app
