// Trains an MLP on a table of numbers, with the loop of PyTorch and Accelerate. The same program
// trains in one process or in several, with the same losses.
//
//   table_mlp TRAIN.h5 EVAL.h5
//   lathe launch --num_processes 2 table_mlp TRAIN.h5 EVAL.h5
//
// Each HDF5 file has two datasets: "inputs" [n, columns] of floating-point numbers, and "targets"
// [n] of classes from 0 to 2.
#include <iostream>

#include "lathe/lathe.h"

namespace nn = lathe::nn;

void Train(const char* train_file, const char* eval_file) {
  const int num_epochs = 5, num_classes = 3, hidden_size = 32;

  lathe::Hdf5Dataset train_set(train_file, {"inputs", "targets"});
  lathe::Hdf5Dataset eval_set(eval_file, {"inputs", "targets"});
  lathe::DataLoader train(train_set, {.batch_size = 32, .shuffle = true});
  lathe::DataLoader eval(eval_set, {.batch_size = 64});

  const int64_t num_columns = train_set.Get(0)[0].numel();
  nn::Sequential model;
  model.Add<nn::Linear>(num_columns, hidden_size, nn::DefaultInit(num_columns));
  model.Add<nn::Tanh>();
  model.Add<nn::Linear>(hidden_size, num_classes, nn::DefaultInit(hidden_size));
  model.Initialize(/*seed=*/42);

  const auto loss_function = [](const lathe::Tensor& outputs, const lathe::Tensor& targets) {
    return lathe::CrossEntropy(outputs, targets);
  };
  lathe::SGD optimizer(model.Parameters(), {.lr = 0.05, .momentum = 0.9});
  auto scheduler =
      lathe::GetScheduler("linear", optimizer, {.num_training_steps = num_epochs * train.size()});

  lathe::Accelerator accelerator;
  accelerator.Prepare(model, optimizer, train, eval, *scheduler);
  for (int epoch = 0; epoch < num_epochs; ++epoch) {
    model.Train();
    for (auto& [inputs, targets] : train) {
      lathe::Tensor outputs = model(inputs);
      lathe::Tensor loss = loss_function(outputs, targets);
      accelerator.Backward(loss);
      optimizer.Step();
      scheduler->Step();
      optimizer.ZeroGrad();
      accelerator.Print("loss ", accelerator.last_loss());  // over the samples of all processes
    }

    model.Eval();
    lathe::NoGradGuard no_grad;
    double correct = 0;
    for (auto& [inputs, targets] : eval) {
      lathe::Tensor predictions = lathe::ArgMax(model(inputs), /*dim=*/1);
      lathe::Tensor hits = lathe::Equal(predictions, targets).To(lathe::DType::kF32);
      correct += lathe::Sum(accelerator.GatherForMetrics(hits)).Item();
    }
    accelerator.Print("epoch ", epoch + 1, ": accuracy ", correct / eval_set.Size());
  }
}

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::cerr << "usage: table_mlp TRAIN.h5 EVAL.h5\n";
    return 2;
  }
  std::cout.precision(9);
  Train(argv[1], argv[2]);
} catch (const std::exception& e) {
  std::cerr << "error: " << e.what() << '\n';
  return 1;
}
