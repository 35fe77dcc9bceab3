// Trains a siamese model: one BERT encodes both texts of a pair. A contrastive loss brings the
// vectors of similar texts together and pushes those of different texts apart.
//
//   siamese_bert MODEL_DIR TRAIN.csv EVAL.csv
//   lathe launch --num_processes 2 siamese_bert MODEL_DIR TRAIN.csv EVAL.csv
//
// The files have the columns "first", "second" and "similar" (1 or 0). MODEL_DIR holds config.json
// and the tokenizer's files. The weights are fresh.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "lathe/lathe.h"

using lathe::Tensor;

struct Pair {
  std::vector<int32_t> first, second;  // ids of tokens
  float similar = 0;
};

struct PairDataset : lathe::Dataset<Pair> {
  PairDataset(const std::string& path, const lathe::Tokenizer& tokenizer) {
    const lathe::TextTable table = lathe::ReadTextTable(path);
    const Tensor similar = lathe::NumberColumn(table, "similar");  // [rows]
    for (int64_t i = 0; i < table.rows(); ++i) {
      pairs.push_back({tokenizer.Encode(table.column("first")[i]).input_ids,
                       tokenizer.Encode(table.column("second")[i]).input_ids,
                       similar.data<float>()[i]});
    }
  }
  int64_t Size() const override { return std::ssize(pairs); }
  Pair Get(int64_t i) const override { return pairs.at(i); }
  std::vector<Pair> pairs;
};

// Makes a batch of B pairs: 2 B texts, of which two that follow each other are a pair.
lathe::Batch PackPairs(const std::vector<Pair>& pairs) {
  std::vector<std::vector<int32_t>> texts;
  std::vector<float> similar;
  for (const Pair& pair : pairs) {
    texts.insert(texts.end(), {pair.first, pair.second});
    similar.push_back(pair.similar);
  }
  lathe::Batch batch = lathe::Batch::Pack(texts);
  batch.labels = Tensor::FromVector(similar);
  return batch;
}

class SiameseBert : public lathe::Module {
 public:
  explicit SiameseBert(const lathe::PretrainedConfig& config)
      : bert_(Register<lathe::BertModel>("bert", config, /*pooler=*/false)) {}

  // Returns the distance of the two vectors of each pair: [B]. A text's vector is the mean of its
  // tokens' hidden states.
  Tensor operator()(const lathe::Batch& batch) const {
    Tensor tokens = bert_->Forward(batch, {.training = training()}).last_hidden_state;  // [T, H]
    Tensor vectors = lathe::SegmentMean(tokens, batch.cu_seqlens.To(device()));         // [2 B, H]
    vectors = lathe::Reshape(vectors, {-1, 2, vectors.dim(1)});
    Tensor difference =
        lathe::Slice(vectors, 1, 0, 1) - lathe::Slice(vectors, 1, 1, 2);  // [B, 1, H]
    return lathe::Sqrt(lathe::Flatten(lathe::SumLast(difference * difference)) + 1e-6);
  }

 private:
  std::shared_ptr<lathe::BertModel> bert_;
};

// The contrastive loss (Hadsell et al. 2006): s d^2 + (1 - s) max(0, margin - d)^2.
Tensor ContrastiveLoss(const Tensor& distances, const Tensor& similar, double margin) {
  Tensor gap = lathe::Relu(margin - distances);
  return lathe::Mean(similar * distances * distances + (1 - similar) * gap * gap);
}

void Train(const std::string& model_dir, const std::string& train_file,
           const std::string& eval_file) {
  const int num_epochs = 10;
  const double margin = 2;
  auto tokenizer = lathe::AutoTokenizer::FromPretrained(model_dir);
  const PairDataset eval_set(eval_file, *tokenizer);
  lathe::DataLoader train(PairDataset(train_file, *tokenizer), {.batch_size = 16, .shuffle = true},
                          PackPairs);
  lathe::DataLoader eval(eval_set, {.batch_size = 64}, PackPairs);
  SiameseBert model(lathe::AutoConfig::FromPretrained(model_dir));
  model.Initialize(/*seed=*/42);
  lathe::AdamW optimizer(model.Parameters(), {.lr = 5e-3});

  lathe::Accelerator accelerator;
  accelerator.Prepare(model, optimizer, train, eval);
  for (int epoch = 0; epoch < num_epochs; ++epoch) {
    model.Train();
    for (const lathe::Batch& batch : train) {
      accelerator.Backward(ContrastiveLoss(model(batch), batch.labels.To(model.device()), margin));
      optimizer.Step();
      optimizer.ZeroGrad();
    }

    model.Eval();
    lathe::NoGradGuard no_grad;
    double correct = 0;
    for (const lathe::Batch& batch : eval) {
      Tensor near = lathe::Less(model(batch), margin / 2).To(lathe::DType::kF32);
      Tensor hits = lathe::Equal(near, batch.labels.To(model.device())).To(lathe::DType::kF32);
      correct += lathe::Sum(accelerator.GatherForMetrics(hits)).Item();
    }
    accelerator.Print("epoch ", epoch + 1, ": loss ", accelerator.last_loss(), " accuracy ",
                      correct / eval_set.Size());
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
