// Trains a network whose activation is an op of the program's own (squared_relu.h). It learns the
// squared length of points, in one process or several, on the CPU or on GPUs.
//
//   own_op
//   lathe launch --num_processes 2 own_op
#include <iostream>

#include "lathe/examples/squared_relu.h"
#include "lathe/lathe.h"

namespace nn = lathe::nn;
using lathe::Tensor;

class SquaredReluLayer : public lathe::Module {
 public:
  Tensor Forward(const Tensor& x) const { return SquaredRelu(x); }
};

// Returns n points [n, 4] and their squared lengths [n, 1].
lathe::TensorDataset<2> Points(int64_t n, uint64_t seed) {
  Tensor points = lathe::Randn({n, 4}, seed);
  return lathe::TensorDataset(points, lathe::SumLast(points * points));
}

void Train() {
  const int num_epochs = 10;
  const auto train_set = Points(500, /*seed=*/1), eval_set = Points(100, /*seed=*/2);
  lathe::DataLoader train(train_set, {.batch_size = 32, .shuffle = true});
  lathe::DataLoader eval(eval_set, {.batch_size = 64});

  nn::Sequential model;
  model.Add<nn::Linear>(4, 32, nn::DefaultInit(4));
  model.Add<SquaredReluLayer>();
  model.Add<nn::Linear>(32, 1, nn::DefaultInit(32));
  model.Initialize(/*seed=*/42);
  lathe::AdamW optimizer(model.Parameters(), {.lr = 1e-2});

  lathe::Accelerator accelerator;
  accelerator.Prepare(model, optimizer, train, eval);
  accelerator.Print("device ", lathe::ToString(accelerator.device()));
  for (int epoch = 0; epoch < num_epochs; ++epoch) {
    model.Train();
    for (auto& [points, lengths] : train) {
      accelerator.Backward(lathe::MseLoss(model(points), lengths));
      optimizer.Step();
      optimizer.ZeroGrad();
    }

    model.Eval();
    lathe::NoGradGuard no_grad;
    double squared_error = 0;
    for (auto& [points, lengths] : eval) {
      Tensor errors = lathe::Pow(model(points) - lengths, 2);
      squared_error += lathe::Sum(accelerator.GatherForMetrics(errors)).Item();
    }
    accelerator.Print("epoch ", epoch + 1, ": loss ", accelerator.last_loss(), " mse ",
                      squared_error / eval_set.Size());
  }
}

int main() try {
  std::cout.precision(9);
  Train();
} catch (const std::exception& e) {
  std::cerr << "error: " << e.what() << '\n';
  return 1;
}
