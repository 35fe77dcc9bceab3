// A program that embeds Lathe and extends it: a classifier on BertModel with a pooling of its own.
//
// It learns to tell sequences with more small token ids than large ones from the others. It fails
// unless the loss falls and new sequences are told apart. Then it trains another classifier with
// the Trainer.
#include <cstdint>
#include <iostream>
#include <memory>
#include <random>
#include <vector>

#include "core/tensor.h"  // the program's own
#include "lathe/lathe.h"
#include "lathe/models/bert/bert.h"
#include "with_trainer.h"

namespace app {

// A user-defined op with its gradient: the mean of each sequence's rows.
//   hidden_states: [T, H] f32, cu_seqlens: [B+1] i32 -> [B, H]
//   y[b] = 1/n_b sum_{t in b} x[t]     dx[t] = dy[b] / n_b
class MeanOfTokens : public lathe::Function {
 public:
  explicit MeanOfTokens(lathe::Tensor cu_seqlens) : cu_seqlens_(std::move(cu_seqlens)) {}
  const char* name() const override { return "mean_of_tokens"; }

  lathe::Tensor Forward(const std::vector<lathe::Tensor>& inputs) override {
    num_tokens_ = inputs[0].dim(0);
    const int64_t width = inputs[0].dim(1);
    lathe::Tensor y = lathe::Tensor::Zeros({cu_seqlens_.dim(0) - 1, width});
    ForEachRow([&](int64_t b, int64_t t, float weight) {
      for (int64_t i = 0; i < width; ++i) {
        y.data<float>()[b * width + i] += weight * inputs[0].data<float>()[t * width + i];
      }
    });
    return y;
  }

  std::vector<lathe::Tensor> Backward(const lathe::Tensor& dy) override {
    const int64_t width = dy.dim(1);
    lathe::Tensor dx = lathe::Tensor::Empty({num_tokens_, width});
    ForEachRow([&](int64_t b, int64_t t, float weight) {
      for (int64_t i = 0; i < width; ++i) {
        dx.data<float>()[t * width + i] = weight * dy.data<float>()[b * width + i];
      }
    });
    return {dx};
  }

 private:
  template <typename F>
  void ForEachRow(F visit) const {
    const int32_t* starts = cu_seqlens_.data<int32_t>();
    for (int64_t b = 0; b + 1 < cu_seqlens_.dim(0); ++b) {
      const float weight = 1.0f / static_cast<float>(starts[b + 1] - starts[b]);
      for (int64_t t = starts[b]; t < starts[b + 1]; ++t) visit(b, t, weight);
    }
  }

  lathe::Tensor cu_seqlens_;
  int64_t num_tokens_ = 0;
};

class MeanPoolingClassifier : public lathe::Module {
 public:
  explicit MeanPoolingClassifier(const lathe::PretrainedConfig& config)
      : bert_(Register<lathe::BertModel>("bert", config, /*pooler=*/false)),
        classifier_(Register<lathe::nn::Linear>("classifier", bert_->hidden_size(), 2,
                                                lathe::Init::Normal(0.02))) {}

  lathe::SequenceClassifierOutput Forward(const lathe::Batch& batch) const {
    lathe::BertForwardOptions options;
    options.training = training();
    const lathe::BertOutput encoded = bert_->Forward(batch, options);
    lathe::SequenceClassifierOutput out;
    out.logits = classifier_->Forward(
        lathe::Apply<MeanOfTokens>({encoded.last_hidden_state}, batch.cu_seqlens));
    out.loss = lathe::CrossEntropy(out.logits, batch.labels);
    return out;
  }

 private:
  std::shared_ptr<lathe::BertModel> bert_;
  std::shared_ptr<lathe::nn::Linear> classifier_;
};

constexpr int kVocabSize = 60;

lathe::Batch MakeBatch(std::mt19937& random, int size) {
  std::vector<std::vector<int32_t>> sequences;
  std::vector<int64_t> labels;
  for (int b = 0; b < size; ++b) {
    std::vector<int32_t> ids(5 + 2 * (random() % 6));
    int small = 0;
    for (int32_t& id : ids) {
      id = static_cast<int32_t>(random() % kVocabSize);
      small += id < kVocabSize / 2 ? 1 : 0;
    }
    labels.push_back(2 * small > static_cast<int>(ids.size()) ? 1 : 0);
    sequences.push_back(std::move(ids));
  }
  return lathe::Batch::Pack(sequences, {}, lathe::Tensor::FromVector(labels));
}

double Accuracy(const lathe::Batch& batch, const std::vector<float>& logits) {
  const auto labels = batch.labels.ToVector<int64_t>();
  int right = 0;
  for (size_t b = 0; b < labels.size(); ++b) {
    right += (logits[2 * b + 1] > logits[2 * b]) == (labels[b] == 1) ? 1 : 0;
  }
  return right / static_cast<double>(labels.size());
}

int Run() {
  const auto config = lathe::PretrainedConfig::FromJson({{"model_type", "bert"},
                                                         {"vocab_size", kVocabSize},
                                                         {"hidden_size", 32},
                                                         {"num_hidden_layers", 2},
                                                         {"num_attention_heads", 2},
                                                         {"intermediate_size", 64},
                                                         {"max_position_embeddings", 32}});
  MeanPoolingClassifier model(config);
  model.Initialize(/*seed=*/42);
  lathe::AdamW optimizer(model.Parameters(), {.lr = 3e-3});
  constexpr int kSteps = 100;
  const auto scheduler = lathe::GetScheduler(
      "linear", optimizer, {.num_warmup_steps = 10, .num_training_steps = kSteps});
  lathe::Accelerator accelerator;

  std::mt19937 random(1);
  double first_loss = 0, last_loss = 0;
  model.Train();
  for (int step = 0; step < kSteps; ++step) {
    const auto outputs = model.Forward(MakeBatch(random, 32));
    accelerator.Backward(outputs.loss);
    optimizer.Step();
    scheduler->Step();
    optimizer.ZeroGrad();
    if (step < 10) first_loss += outputs.loss.Item() / 10;
    if (step >= kSteps - 10) last_loss += outputs.loss.Item() / 10;
  }

  model.Eval();
  const lathe::NoGradGuard no_grad;
  const lathe::Batch unseen = MakeBatch(random, 200);
  const double accuracy = Accuracy(unseen, model.Forward(unseen).logits.ToVector<float>());
  std::cout << "embedding: loss " << first_loss << " -> " << last_loss << ", accuracy " << accuracy
            << " on new sequences\n";
  const app::Tensor own{.rows = 1};  // the program's own type beside lathe::Tensor
  const bool learned = last_loss < 0.6 * first_loss && accuracy > 0.85;
  return learned && own.rows == 1 ? 0 : 1;
}

}  // namespace app

int main() {
  try {
    const int result = app::Run();
    return result == 0 && app::LearnsWithTrainer() ? 0 : 1;
  } catch (const lathe::Error& e) {
    std::cerr << "error: " << e.what() << '\n';
    return 1;
  }
}
