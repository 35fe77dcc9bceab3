// The loop of training_loop.cc, which can be stopped at any time, even by kill -9. The same command
// goes on from the last saved state, with any number of processes.
//
//   resumable_loop MODEL_DIR TRAIN_FILE VALIDATION_FILE OUTPUT_DIR
//   lathe launch --num_processes 2 resumable_loop MODEL_DIR TRAIN_FILE VALIDATION_FILE OUTPUT_DIR
#include <cstdint>
#include <iostream>
#include <string>

#include "lathe/lathe.h"

namespace {

constexpr int64_t kNumEpochs = 3, kSaveEvery = 10;  // steps

// What the loop itself must remember.
struct Progress {
  int64_t steps = 0;
  double loss_sum = 0;

  lathe::StateDict StateDict() const {
    lathe::StateDict state;
    state.values = {{"steps", steps}, {"loss_sum", loss_sum}};
    return state;
  }
  void LoadStateDict(const lathe::StateDict& state) {
    steps = state.Get<int64_t>("progress", "steps");
    loss_sum = state.Get<double>("progress", "loss_sum");
  }
};

void Train(const std::string& checkpoint, const std::string& train_file,
           const std::string& eval_file, const std::string& output_dir) {
  auto tokenizer = lathe::AutoTokenizer::FromPretrained(checkpoint);
  const lathe::TextTable train_table = lathe::ReadTextTable(train_file);
  const lathe::TextTable eval_table = lathe::ReadTextTable(eval_file);
  const lathe::TextColumns columns = lathe::ChooseTextColumns(train_table, {});
  const lathe::LabelSet labels = lathe::LabelSet::Infer({&train_table.column("label")});
  const auto train_set =
      lathe::Tokenize(train_table, columns, labels, *tokenizer, {.max_length = 128});
  const auto eval_set =
      lathe::Tokenize(eval_table, columns, labels, *tokenizer, {.max_length = 128});

  lathe::Accelerator accelerator(
      {.project = {
           .project_dir = output_dir, .automatic_checkpoint_naming = true, .total_limit = 2}});
  auto model = lathe::AutoModelForSequenceClassification::FromPretrained(
      checkpoint, {.label_names = labels.names()});
  lathe::AdamW optimizer(model->Parameters(), {.lr = 3e-5});
  lathe::DataLoader train(train_set, {.batch_size = 32, .shuffle = true});
  lathe::DataLoader eval(eval_set, {.batch_size = 32});
  auto scheduler =
      lathe::GetScheduler("linear", optimizer, {.num_training_steps = kNumEpochs * train.size()});

  Progress progress;
  accelerator.Prepare(train, eval, *model, optimizer, *scheduler);
  accelerator.RegisterForCheckpointing(progress);
  if (const std::string state = accelerator.LoadState(); !state.empty())
    accelerator.Print("goes on after step ", progress.steps, ", from ", state);
  // A loaded loader knows its epoch, and begins with the batch that comes next.
  while (train.epoch() < kNumEpochs) {
    model->Train();
    for (const lathe::Batch& batch : train) {
      accelerator.Backward(model->Forward(batch).loss);
      optimizer.Step();
      scheduler->Step();
      optimizer.ZeroGrad();
      progress.loss_sum += accelerator.last_loss();
      if (++progress.steps % kSaveEvery == 0) accelerator.SaveState();
    }

    model->Eval();
    lathe::NoGradGuard no_grad;
    double loss_sum = 0;  // over this rank's shares
    for (const lathe::Batch& batch : eval) {
      loss_sum += model->Forward(batch).loss.Item() * batch.share->weight;
    }
    const lathe::Tensor loss = accelerator.Reduce(lathe::Tensor::FromVector<double>({loss_sum}));
    accelerator.Print("epoch ", train.epoch(), ": eval_loss ",
                      loss.Item() / static_cast<double>(eval_set.size()));
  }
  accelerator.Print("train_loss ", progress.loss_sum / static_cast<double>(progress.steps));

  accelerator.OnMainProcess([&] {
    model->SavePretrained(output_dir);
    tokenizer->SavePretrained(output_dir);
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: resumable_loop MODEL_DIR TRAIN_FILE VALIDATION_FILE OUTPUT_DIR\n";
    return 2;
  }
  try {
    Train(argv[1], argv[2], argv[3], argv[4]);
  } catch (const std::exception& e) {
    std::cerr << "error: " << e.what() << '\n';
    return 1;
  }
  return 0;
}
