// The training loop of PyTorch + Transformers + Accelerate, in C++. The same program trains in one
// process or in several, with the same numbers.
//
//   training_loop MODEL_DIR TRAIN_FILE VALIDATION_FILE OUTPUT_DIR
//   lathe launch --num_processes 2 training_loop MODEL_DIR TRAIN_FILE VALIDATION_FILE OUTPUT_DIR
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <string>

#include "lathe/lathe.h"

namespace {

void Train(const std::string& checkpoint, const std::string& train_file,
           const std::string& eval_file, const std::string& output_dir) {
  const int num_epochs = 3;

  auto tokenizer = lathe::AutoTokenizer::FromPretrained(checkpoint);
  const lathe::TextTable train_table = lathe::ReadTextTable(train_file);
  const lathe::TextTable eval_table = lathe::ReadTextTable(eval_file);
  const lathe::TextColumns columns = lathe::ChooseTextColumns(train_table, {});
  const lathe::LabelSet labels = lathe::LabelSet::Infer({&train_table.column("label")});
  const auto train_set =
      lathe::Tokenize(train_table, columns, labels, *tokenizer, {.max_length = 128});
  const auto eval_set =
      lathe::Tokenize(eval_table, columns, labels, *tokenizer, {.max_length = 128});

  lathe::Accelerator accelerator;
  auto model = lathe::AutoModelForSequenceClassification::FromPretrained(
      checkpoint, {.label_names = labels.names()});
  lathe::AdamW optimizer(model->Parameters(), {.lr = 3e-5});
  lathe::DataLoader train(train_set, {.batch_size = 32, .shuffle = true});
  lathe::DataLoader eval(eval_set, {.batch_size = 32});
  const int64_t steps = num_epochs * train.size();
  auto scheduler = lathe::GetScheduler("linear", optimizer, {.num_training_steps = steps});

  accelerator.Prepare(train, eval, *model, optimizer, *scheduler);
  for (int epoch = 0; epoch < num_epochs; ++epoch) {
    model->Train();
    for (const lathe::Batch& batch : train) {
      lathe::SequenceClassifierOutput outputs = model->Forward(batch);
      accelerator.Backward(outputs.loss);
      optimizer.Step();
      scheduler->Step();
      optimizer.ZeroGrad();
    }

    model->Eval();
    lathe::NoGradGuard no_grad;
    double loss_sum = 0;  // over this rank's shares
    for (const lathe::Batch& batch : eval) {
      loss_sum += model->Forward(batch).loss.Item() * batch.share->weight;
    }
    const lathe::Tensor loss = accelerator.Reduce(lathe::Tensor::FromVector<double>({loss_sum}));
    accelerator.Print("epoch ", epoch + 1, ": eval_loss ",
                      loss.Item() / static_cast<double>(eval_set.size()));
  }

  accelerator.OnMainProcess([&] {
    std::filesystem::create_directories(output_dir);
    model->SavePretrained(output_dir);
    tokenizer->SavePretrained(output_dir);
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: training_loop MODEL_DIR TRAIN_FILE VALIDATION_FILE OUTPUT_DIR\n";
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
