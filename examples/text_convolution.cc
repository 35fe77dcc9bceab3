// Classifies texts with embeddings and a convolution over their words (Kim 2014).
//
//   text_convolution TOKENIZER_DIR TRAIN.csv EVAL.csv
//   lathe launch --num_processes 2 text_convolution TOKENIZER_DIR TRAIN.csv EVAL.csv
//
// The files have a column of texts and a column "label". TOKENIZER_DIR holds a tokenizer's files.
#include <iostream>
#include <memory>
#include <string>

#include "lathe/lathe.h"

namespace nn = lathe::nn;
using lathe::Tensor;

class TextConvolution : public lathe::Module {
 public:
  TextConvolution(int64_t vocab_size, int64_t num_labels)
      : embedding_(
            Register<nn::Embedding>("embedding", vocab_size, /*columns=*/16, /*std_dev=*/0.5)),
        convolution_(Register<nn::Conv1d>("convolution", /*in=*/16, /*out=*/32, /*kernel_size=*/3,
                                          lathe::Conv1dOptions{.padding = 1})),
        classifier_(Register<nn::Linear>("classifier", 32, num_labels, nn::DefaultInit(32))) {}

  // A batch is packed: input_ids [T] has the tokens of all texts, and cu_seqlens [B + 1] says where
  // each text starts.
  Tensor operator()(const lathe::Batch& batch) const {
    lathe::PackedSequences texts;
    texts.cu_seqlens = batch.cu_seqlens.To(device());
    texts.max_seqlen = batch.max_seqlen;
    Tensor words = embedding_->Forward(batch.input_ids.To(device()));            // [T, 16]
    Tensor features = lathe::Relu(convolution_->Forward(words, texts));          // [T, 32]
    return classifier_->Forward(lathe::SegmentMax(features, texts.cu_seqlens));  // [B, num_labels]
  }

 private:
  std::shared_ptr<nn::Embedding> embedding_;
  std::shared_ptr<nn::Conv1d> convolution_;
  std::shared_ptr<nn::Linear> classifier_;
};

void Train(const std::string& tokenizer_dir, const std::string& train_file,
           const std::string& eval_file) {
  const int num_epochs = 5;

  auto tokenizer = lathe::AutoTokenizer::FromPretrained(tokenizer_dir);
  const lathe::TextTable train_table = lathe::ReadTextTable(train_file);
  const lathe::TextTable eval_table = lathe::ReadTextTable(eval_file);
  const lathe::TextColumns columns = lathe::ChooseTextColumns(train_table, {});
  const lathe::LabelSet labels = lathe::LabelSet::Infer({&train_table.column("label")});
  auto train_set = lathe::Tokenize(train_table, columns, labels, *tokenizer, {});
  auto eval_set = lathe::Tokenize(eval_table, columns, labels, *tokenizer, {});
  lathe::DataLoader train(train_set, {.batch_size = 16, .shuffle = true});
  lathe::DataLoader eval(eval_set, {.batch_size = 64});

  TextConvolution model(tokenizer->vocab_size(), labels.num_labels());
  model.Initialize(/*seed=*/42);
  lathe::AdamW optimizer(model.Parameters(), {.lr = 1e-2});

  lathe::Accelerator accelerator;
  accelerator.Prepare(model, optimizer, train, eval);
  for (int epoch = 0; epoch < num_epochs; ++epoch) {
    model.Train();
    for (const lathe::Batch& batch : train) {
      Tensor logits = model(batch);
      accelerator.Backward(lathe::CrossEntropy(logits, batch.labels.To(model.device())));
      optimizer.Step();
      optimizer.ZeroGrad();
    }

    model.Eval();
    lathe::NoGradGuard no_grad;
    double correct = 0;
    for (const lathe::Batch& batch : eval) {
      Tensor predictions = lathe::ArgMax(model(batch), /*dim=*/1);
      Tensor hits = lathe::Equal(predictions, batch.labels.To(model.device()));
      correct += lathe::Sum(accelerator.GatherForMetrics(hits.To(lathe::DType::kF32))).Item();
    }
    accelerator.Print("epoch ", epoch + 1, ": loss ", accelerator.last_loss(), " accuracy ",
                      correct / eval_set.size());
  }
}

int main(int argc, char** argv) try {
  if (argc != 4) {
    std::cerr << "usage: text_convolution TOKENIZER_DIR TRAIN.csv EVAL.csv\n";
    return 2;
  }
  std::cout.precision(9);
  Train(argv[1], argv[2], argv[3]);
} catch (const std::exception& e) {
  std::cerr << "error: " << e.what() << '\n';
  return 1;
}
