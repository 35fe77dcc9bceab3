// Trains one encoder with two heads: one finds the class of a text, the other one a number.
//
//   two_heads MODEL_DIR TRAIN.csv EVAL.csv
//   lathe launch --num_processes 2 two_heads MODEL_DIR TRAIN.csv EVAL.csv
//
// The files have the columns "text", "class" (0 or 1) and "score" (a number). MODEL_DIR holds
// config.json and the tokenizer's files. The weights are fresh.
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/lathe.h"

namespace nn = lathe::nn;
using lathe::Tensor;

struct Sample {
  std::vector<int32_t> ids;  // of tokens
  int64_t label;
  float score;
};

struct SampleDataset : lathe::Dataset<Sample> {
  SampleDataset(const std::string& path, const lathe::Tokenizer& tokenizer) {
    const lathe::TextTable table = lathe::ReadTextTable(path);
    const Tensor labels = lathe::NumberColumn(table, "class", lathe::DType::kI64);
    const Tensor scores = lathe::NumberColumn(table, "score");
    for (int64_t i = 0; i < table.rows(); ++i) {
      samples.push_back({tokenizer.Encode(table.column("text")[i]).input_ids,
                         labels.data<int64_t>()[i], scores.data<float>()[i]});
    }
  }
  int64_t Size() const override { return std::ssize(samples); }
  Sample Get(int64_t i) const override { return samples.at(i); }
  std::vector<Sample> samples;
};

// A batch of packed texts with their classes (in `labels`) and scores [B].
struct TwoTargets : lathe::Batch {
  Tensor scores;
};

TwoTargets Collate(const std::vector<Sample>& samples) {
  std::vector<std::vector<int32_t>> texts;
  std::vector<int64_t> labels;
  std::vector<float> scores;
  for (const Sample& sample : samples) {
    texts.push_back(sample.ids);
    labels.push_back(sample.label);
    scores.push_back(sample.score);
  }
  return {lathe::Batch::Pack(texts, {}, Tensor::FromVector(labels)), Tensor::FromVector(scores)};
}

class TwoHeads : public lathe::Module {
 public:
  explicit TwoHeads(const lathe::PretrainedConfig& config)
      : bert_(Register<lathe::BertModel>("bert", config, /*pooler=*/false)) {
    const int64_t width = bert_->hidden_size();
    classifier_ = Register<nn::Linear>("classifier", width, 2, nn::DefaultInit(width));
    regressor_ = Register<nn::Linear>("regressor", width, 1, nn::DefaultInit(width));
  }

  // Returns logits [B, 2] and scores [B].
  std::pair<Tensor, Tensor> operator()(const lathe::Batch& batch) const {
    Tensor tokens = bert_->Forward(batch, {.training = training()}).last_hidden_state;  // [T, H]
    Tensor pooled = lathe::SegmentMean(tokens, batch.cu_seqlens.To(device()));          // [B, H]
    return {classifier_->Forward(pooled), lathe::Squeeze(regressor_->Forward(pooled), 1)};
  }

 private:
  std::shared_ptr<lathe::BertModel> bert_;
  std::shared_ptr<nn::Linear> classifier_, regressor_;
};

void Train(const char* model_dir, const char* train_file, const char* eval_file) {
  auto tokenizer = lathe::AutoTokenizer::FromPretrained(model_dir);
  const SampleDataset train_set(train_file, *tokenizer), eval_set(eval_file, *tokenizer);
  lathe::DataLoader train(train_set, {.batch_size = 8, .shuffle = true}, Collate);
  lathe::DataLoader eval(eval_set, {.batch_size = 64}, Collate);
  TwoHeads model(lathe::AutoConfig::FromPretrained(model_dir));
  model.Initialize(/*seed=*/42);
  lathe::AdamW optimizer(model.Parameters(), {.lr = 5e-3});
  lathe::Accelerator accelerator;
  accelerator.Prepare(model, optimizer, train, eval);
  const lathe::Device device = accelerator.device();
  for (int epoch = 0; epoch < 15; ++epoch) {
    model.Train();
    for (const TwoTargets& batch : train) {
      const auto [logits, scores] = model(batch);
      accelerator.Backward(lathe::CrossEntropy(logits, batch.labels.To(device)) +
                           lathe::MseLoss(scores, batch.scores.To(device)));
      optimizer.Step();
      optimizer.ZeroGrad();
    }
    model.Eval();
    lathe::NoGradGuard no_grad;
    double correct = 0, squared_error = 0;
    for (const TwoTargets& batch : eval) {
      const auto [logits, scores] = model(batch);
      Tensor hits = lathe::Equal(lathe::ArgMax(logits, 1), batch.labels.To(device));
      Tensor errors = lathe::Pow(scores - batch.scores.To(device), 2);
      correct += lathe::Sum(accelerator.GatherForMetrics(hits.To(lathe::DType::kF32))).Item();
      squared_error += lathe::Sum(accelerator.GatherForMetrics(errors)).Item();
    }
    accelerator.Print("epoch ", epoch + 1, ": loss ", accelerator.last_loss(), " accuracy ",
                      correct / eval_set.Size(), " mse ", squared_error / eval_set.Size());
  }
}

int main(int argc, char** argv) try {
  if (argc != 4) throw lathe::InvalidArgument("expected MODEL_DIR TRAIN.csv EVAL.csv");
  std::cout.precision(9);
  Train(argv[1], argv[2], argv[3]);
} catch (const std::exception& e) {
  std::cerr << "error: " << e.what() << '\n';
  return 1;
}
