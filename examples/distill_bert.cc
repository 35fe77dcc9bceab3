// Distils a small BERT from a larger one (Hinton et al. 2015): the student learns the labels and
// the teacher's probabilities.
//
//   distill_bert TEACHER_DIR STUDENT_DIR TRAIN.csv EVAL.csv OUTPUT_DIR
//   lathe launch --num_processes 2 distill_bert TEACHER_DIR ...
//
// TEACHER_DIR is a trained classifier. STUDENT_DIR holds a config.json for the student's sizes.
#include <filesystem>
#include <iostream>
#include <string>

#include "lathe/lathe.h"

namespace nn = lathe::nn;
using lathe::Tensor;

// alpha CE(student, labels) + (1 - alpha) T^2 KL(softmax(teacher / T) | softmax(student / T)).
Tensor DistillationLoss(const Tensor& student, const Tensor& teacher, const Tensor& labels) {
  const double alpha = 0.3, temperature = 2;
  Tensor soft = nn::KlDivLoss(lathe::LogSoftmaxLast(student / temperature),
                              lathe::SoftmaxLast(teacher / temperature),
                              {.reduction = lathe::Reduction::kBatchMean});
  Tensor hard = lathe::CrossEntropy(student, labels);
  return alpha * hard + (1 - alpha) * temperature * temperature * soft;
}

void Train(const std::string& teacher_dir, const std::string& student_dir,
           const std::string& train_file, const std::string& eval_file,
           const std::string& output_dir) {
  const int num_epochs = 10;

  auto teacher = lathe::AutoModelForSequenceClassification::FromPretrained(teacher_dir);
  auto tokenizer = lathe::AutoTokenizer::FromPretrained(teacher_dir);
  teacher->Eval();
  for (lathe::Parameter& parameter : teacher->Parameters()) parameter.tensor.SetRequiresGrad(false);
  const lathe::LabelSet labels = lathe::LabelSet::Classes(teacher->config().label_names());
  auto student = lathe::AutoModelForSequenceClassification::FromConfig(
      lathe::AutoConfig::FromPretrained(student_dir), {.label_names = labels.names()});

  const lathe::TextTable train_table = lathe::ReadTextTable(train_file);
  const lathe::TextTable eval_table = lathe::ReadTextTable(eval_file);
  const lathe::TextColumns columns = lathe::ChooseTextColumns(train_table, {});
  auto train_set = lathe::Tokenize(train_table, columns, labels, *tokenizer, {});
  auto eval_set = lathe::Tokenize(eval_table, columns, labels, *tokenizer, {});
  lathe::DataLoader train(train_set, {.batch_size = 16, .shuffle = true});
  lathe::DataLoader eval(eval_set, {.batch_size = 64});
  lathe::AdamW optimizer(student->Parameters(), {.lr = 1e-2});

  lathe::Accelerator accelerator;
  accelerator.Prepare(*teacher, *student, optimizer, train, eval);
  for (int epoch = 0; epoch < num_epochs; ++epoch) {
    student->Train();
    for (const lathe::Batch& batch : train) {
      Tensor teacher_logits = teacher->Forward(batch).logits;
      Tensor logits = student->Forward(batch).logits;
      accelerator.Backward(
          DistillationLoss(logits, teacher_logits, batch.labels.To(student->device())));
      optimizer.Step();
      optimizer.ZeroGrad();
    }

    student->Eval();
    lathe::NoGradGuard no_grad;
    double correct = 0;
    for (const lathe::Batch& batch : eval) {
      Tensor predictions = lathe::ArgMax(student->Forward(batch).logits, /*dim=*/1);
      Tensor hits = lathe::Equal(predictions, batch.labels.To(student->device()));
      correct += lathe::Sum(accelerator.GatherForMetrics(hits.To(lathe::DType::kF32))).Item();
    }
    accelerator.Print("epoch ", epoch + 1, ": loss ", accelerator.last_loss(), " accuracy ",
                      correct / eval_set.size());
  }
  accelerator.OnMainProcess([&] {
    std::filesystem::create_directories(output_dir);
    student->SavePretrained(output_dir);
    tokenizer->SavePretrained(output_dir);
  });
}

int main(int argc, char** argv) try {
  if (argc != 6)
    throw lathe::InvalidArgument("expected TEACHER_DIR STUDENT_DIR TRAIN.csv EVAL.csv OUTPUT_DIR");
  std::cout.precision(9);
  Train(argv[1], argv[2], argv[3], argv[4], argv[5]);
} catch (const std::exception& e) {
  std::cerr << "error: " << e.what() << '\n';
  return 1;
}
