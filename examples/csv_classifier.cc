// Trains a classifier of the rows of a CSV file, and predicts the classes of other rows. All
// columns but the label's are numbers. They are standardised by their mean and deviation in the
// training part, which are saved with the model.
//
//   csv_classifier train TRAIN.csv LABEL MODEL_DIR      (LABEL: the column of the classes)
//   csv_classifier predict NEW.csv MODEL_DIR
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "lathe/lathe.h"

namespace nn = lathe::nn;
using lathe::Tensor;
using Names = std::vector<std::string>;

// What scikit-learn's StandardScaler does. The statistics are constants of the model, so its file
// has them, too.
class StandardScaler : public lathe::CallableModule<StandardScaler> {
 public:
  explicit StandardScaler(int64_t columns)
      : mean_(RegisterConstant("mean", {columns}, lathe::Init::Zeros())),
        deviation_(RegisterConstant("deviation", {columns}, lathe::Init::Ones())) {}
  void Fit(const Tensor& rows) {
    mean_.CopyFrom(lathe::Mean(rows, /*dim=*/0));
    Tensor deviation = lathe::Sqrt(lathe::Variance(rows, {0}, {.correction = 0}));
    deviation_.CopyFrom(lathe::Where(lathe::Equal(deviation, 0.0), Tensor::Full({}, 1), deviation));
  }
  Tensor Forward(const Tensor& x) const { return (x - mean_) / deviation_; }

 private:
  Tensor mean_, deviation_;
};

class Classifier : public lathe::CallableModule<Classifier> {
 public:
  Classifier(int64_t columns, int64_t classes)
      : scaler(Register<StandardScaler>("scaler", columns)),
        hidden(Register<nn::Linear>("hidden", columns, 32, nn::DefaultInit(columns))),
        output(Register<nn::Linear>("output", 32, classes, nn::DefaultInit(32))) {}
  Tensor Forward(const Tensor& x) const { return (*output)(lathe::Relu((*hidden)((*scaler)(x)))); }
  std::shared_ptr<StandardScaler> scaler;
  std::shared_ptr<nn::Linear> hidden, output;
};

// Writes a table with one column, "name".
void WriteNames(const std::string& file, const Names& names) {
  std::ofstream out(file);
  out << "name\n";
  for (const std::string& name : names) out << std::quoted(name, '"', '"') << '\n';
}

void Train(const std::string& file, const std::string& label, const std::string& folder) {
  const lathe::TextTable table = lathe::ReadTextTable(file);
  const Names columns = lathe::ColumnsExcept(table, {label});
  const lathe::LabelSet classes = lathe::LabelSet::Infer({&table.column(label)});
  const Tensor inputs = lathe::NumberColumns(table, columns);  // [rows, columns]
  const lathe::TensorDataset data(inputs, lathe::ClassColumn(table, label, classes));
  auto [train_set, eval_set] = lathe::RandomSplit(data, {0.8, 0.2});
  lathe::DataLoader train(train_set, {.batch_size = 16, .shuffle = true});
  lathe::DataLoader eval(eval_set, {.batch_size = 64});
  Classifier model(inputs.dim(1), classes.num_labels());
  model.Initialize(/*seed=*/42);
  model.scaler->Fit(lathe::IndexSelect(inputs, 0, Tensor::FromVector(train_set.indices())));
  lathe::AdamW optimizer(model.Parameters(), {.lr = 1e-2});
  lathe::Accelerator accelerator;
  accelerator.Prepare(model, optimizer, train, eval);
  for (int epoch = 0; epoch < 20; ++epoch) {
    model.Train();
    for (auto& [rows, targets] : train) {
      accelerator.Backward(lathe::CrossEntropy(model(rows), targets));
      optimizer.Step();
      optimizer.ZeroGrad();
    }
    model.Eval();
    lathe::NoGradGuard no_grad;
    double hits = 0;
    for (auto& [rows, targets] : eval) {
      Tensor hit = lathe::Equal(lathe::ArgMax(model(rows), 1), targets).To(lathe::DType::kF32);
      hits += lathe::Sum(accelerator.GatherForMetrics(hit)).Item();
    }
    accelerator.Print("loss ", accelerator.last_loss(), ", accuracy ", hits / eval_set.Size());
  }
  accelerator.OnMainProcess([&] {
    std::filesystem::create_directories(folder);
    lathe::SaveModule(model, folder + "/model.safetensors");
    WriteNames(folder + "/columns.csv", columns);
    WriteNames(folder + "/classes.csv", classes.names());
  });
}

void Predict(const std::string& file, const std::string& folder) {
  const Names columns = lathe::ReadTextTable(folder + "/columns.csv").column("name");
  const Names classes = lathe::ReadTextTable(folder + "/classes.csv").column("name");
  Classifier model(std::ssize(columns), std::ssize(classes));
  lathe::LoadModule(model, folder + "/model.safetensors");
  lathe::NoGradGuard no_grad;
  const Tensor logits = model(lathe::ReadNumberColumns(file, columns));
  for (const int64_t c : lathe::ArgMax(logits, 1).ToVector<int64_t>())
    std::cout << classes[static_cast<size_t>(c)] << '\n';
}

int main(int argc, char** argv) try {
  const Names words(argv + 1, argv + argc);
  if (words.size() == 4 && words[0] == "train") {
    Train(words[1], words[2], words[3]);
  } else if (words.size() == 3 && words[0] == "predict") {
    Predict(words[1], words[2]);
  } else {
    std::cerr << "usage: csv_classifier {train TRAIN.csv LABEL | predict NEW.csv} MODEL_DIR\n";
    return 2;
  }
} catch (const std::exception& e) {
  std::cerr << "error: " << e.what() << '\n';
  return 1;
}
