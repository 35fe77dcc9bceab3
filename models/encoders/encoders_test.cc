// Tests what encoders of all families share, on a toy encoder that can be computed by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/encoders/normed_embeddings.h"
#include "lathe/models/forward_context.h"

namespace lathe {
namespace {

using Floats = std::vector<float>;

Floats ValuesOf(const Module& module, const std::string& name) {
  for (const Parameter& parameter : module.Parameters()) {
    if (parameter.name == name) return parameter.tensor.ToVector<float>();
  }
  ADD_FAILURE() << "no parameter " << name;
  return {};
}

// Token 1 is padding: it has row 1 of the positions and is not counted.
Batch TwoSequences() { return Batch::Pack({{3, 1, 4}, {1, 5}}, {{0, 1, 1}, {1, 0}}); }
constexpr int64_t kPositionRows[] = {2, 1, 3, 1, 2};

constexpr int64_t kHidden = 4;

NormedEmbeddingsOptions TinyEmbeddings() {
  return {.vocab_size = 6,
          .max_position_embeddings = 5,
          .type_vocab_size = 2,
          .task_type_vocab_size = 3,
          .hidden_size = kHidden,
          .first_position = 2,
          .pad_token_id = 1,
          .initializer_range = 0.5,
          .layer_norm_eps = 1e-5};
}

Tensor Embedded(const NormedEmbeddings& embeddings, const Batch& batch) {
  return embeddings.Forward(batch, MakeForwardContext(batch, batch.num_tokens(), Device{}, 0));
}

// Returns row `row` of the sum of all tables, computed here in double.
std::vector<double> SumOfRows(const NormedEmbeddings& embeddings, const Batch& batch, int64_t row) {
  const auto at = [](const Tensor& ids, int64_t i) { return ids.ToVector<int32_t>()[i]; };
  const std::vector<std::pair<std::string, int64_t>> rows = {
      {"word_embeddings.weight", at(batch.input_ids, row)},
      {"token_type_embeddings.weight", at(batch.token_type_ids, row)},
      {"position_embeddings.weight", kPositionRows[row]},
      {"task_type_embeddings.weight", 0}};
  std::vector<double> sum(kHidden);
  for (const auto& [name, index] : rows) {
    const Floats table = ValuesOf(embeddings, name);
    for (int64_t c = 0; c < kHidden; ++c) sum[c] += table[index * kHidden + c];
  }
  return sum;
}

TEST(NormedEmbeddings, AddsRowsOfAllTablesAndNormalisesThem) {
  for (const bool has_norm : {true, false}) {
    NormedEmbeddingsOptions options = TinyEmbeddings();
    options.has_norm = has_norm;
    NormedEmbeddings embeddings(options, "toy");
    embeddings.Initialize(7);
    const Batch batch = TwoSequences();
    const Tensor y = Embedded(embeddings, batch);
    ASSERT_EQ(y.shape(), (Shape{5, kHidden}));
    const Floats values = y.ToVector<float>();
    for (int64_t row = 0; row < 5; ++row) {
      std::vector<double> expected = SumOfRows(embeddings, batch, row);
      if (has_norm) {  // its weight starts at 1 and its bias at 0
        double mean = 0, variance = 0;
        for (const double v : expected) mean += v / kHidden;
        for (const double v : expected) variance += (v - mean) * (v - mean) / kHidden;
        for (double& v : expected) v = (v - mean) / std::sqrt(variance + 1e-5);
      }
      for (int64_t c = 0; c < kHidden; ++c) {
        EXPECT_NEAR(values[row * kHidden + c], expected[c], 1e-5) << row << ", " << c;
      }
    }
  }
}

TEST(NormedEmbeddings, RowsOfPaddingStartAtZero) {
  NormedEmbeddings embeddings(TinyEmbeddings(), "toy");
  embeddings.Initialize(7);
  const Floats word = ValuesOf(embeddings, "word_embeddings.weight");
  const Floats position = ValuesOf(embeddings, "position_embeddings.weight");
  for (int64_t c = 0; c < kHidden; ++c) {
    EXPECT_EQ(word[1 * kHidden + c], 0);      // pad_token_id
    EXPECT_EQ(position[1 * kHidden + c], 0);  // the row before first_position
    EXPECT_NE(word[0 * kHidden + c], 0);
  }
}

std::string MessageOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.message();
  }
  return "no error";
}

TEST(NormedEmbeddings, RefusesWhatIsOutsideOfItsTables) {
  NormedEmbeddings embeddings(TinyEmbeddings(), "toy");
  embeddings.Initialize(7);
  EXPECT_EQ(embeddings.max_length(), 3);
  EXPECT_EQ(MessageOf([&] {
              Embedded(embeddings, Batch::Pack({{0, 0, 0, 0}}));
            }),
            "[toy] a sequence has 4 tokens but the model's max_position_embeddings is 5, of which "
            "3 are for tokens");
  // Padding on the left moves a short sequence behind the last position.
  const Batch padded = Batch::FromPadded(Tensor::FromVector<int32_t>({0, 0, 0, 2}, {1, 4}),
                                         Tensor::FromVector<int32_t>({0, 0, 0, 1}, {1, 4}));
  EXPECT_EQ(MessageOf([&] { Embedded(embeddings, padded); }),
            "[toy] a sequence reaches position 3 but the model's max_position_embeddings is 5, of "
            "which 3 are for tokens");
  EXPECT_THROW(Embedded(embeddings, Batch::Pack({{6}})), Error);
  EXPECT_THROW(Embedded(embeddings, Batch::Pack({{0}}, {{2}})), Error);
}

// Embeds token t as [id, id, ...]. Layer i adds 10^i.
class AddingEncoder : public Encoder {
 public:
  explicit AddingEncoder(int64_t layers) : Encoder("toy", {{"layers", std::to_string(layers)}}) {
    num_layers_ = layers;
  }
  int64_t hidden_size() const override { return kHidden; }
  int64_t num_layers() const override { return num_layers_; }
  int64_t max_length() const override { return 16; }

  mutable std::vector<bool> first_only;  // of each call of a layer

 private:
  Tensor Embed(const Batch&, const nn::ForwardContext& context) const override {
    const auto ids = context.input_ids.ToVector<int32_t>();
    Floats values;
    for (const int32_t id : ids) values.insert(values.end(), kHidden, static_cast<float>(id));
    return Tensor::FromVector(values, {context.input_ids.dim(0), kHidden});
  }
  LayerFunction Layer(int64_t i) const override {
    return [this, i](const Tensor& x, const nn::ForwardContext& context, bool first_tokens_only) {
      first_only.push_back(first_tokens_only);
      const Tensor rows = first_tokens_only ? nn::FirstTokens(x, context.sequences.cu_seqlens) : x;
      return AddScalar(rows, std::pow(10.0, static_cast<double>(i)));
    };
  }
  int64_t num_layers_;
};

// Returns the first column.
Floats Column(const Tensor& x) {
  const Floats values = x.ToVector<float>();
  Floats column;
  for (size_t i = 0; i < values.size(); i += kHidden) column.push_back(values[i]);
  return column;
}

TEST(Encoder, RunsItsLayersOneAfterTheOther) {
  const AddingEncoder encoder(2);
  const EncoderOutput out = encoder.Forward(TwoSequences(), {.output_hidden_states = true});
  EXPECT_EQ(Column(out.last_hidden_state), (Floats{14, 12, 15, 12, 16}));
  EXPECT_EQ(Column(out.first_tokens), (Floats{14, 12}));
  ASSERT_EQ(out.hidden_states.size(), 3u);
  EXPECT_EQ(Column(out.hidden_states[0]), (Floats{3, 1, 4, 1, 5}));
  EXPECT_EQ(Column(out.hidden_states[1]), (Floats{4, 2, 5, 2, 6}));
  EXPECT_EQ(Column(out.hidden_states[2]), (Floats{14, 12, 15, 12, 16}));
}

TEST(Encoder, ComputesTheLastLayerForFirstTokensAlone) {
  const AddingEncoder encoder(2);
  const EncoderOutput out = encoder.Forward(TwoSequences(), {.first_tokens_only = true});
  EXPECT_FALSE(out.last_hidden_state.defined());
  EXPECT_EQ(Column(out.first_tokens), (Floats{14, 12}));
  EXPECT_EQ(encoder.first_only, (std::vector<bool>{false, true}));
  encoder.first_only.clear();
  encoder.Forward(TwoSequences(), {.output_hidden_states = true, .first_tokens_only = true});
  EXPECT_EQ(encoder.first_only, (std::vector<bool>{false, false}));
}

TEST(Encoder, CountsTrainingPassesOverBatchesWithoutAStep) {
  const AddingEncoder encoder(1);
  Batch batch = TwoSequences();
  const EncoderForwardOptions training = {.training = true, .seed = 7};
  for (uint32_t step = 0; step < 3; ++step) {
    const nn::ForwardContext context = encoder.MakeContext(batch, training);
    EXPECT_EQ(context.step, step);
    EXPECT_EQ(context.seed, 7u);
    EXPECT_TRUE(context.training);
    encoder.Forward(batch, training);
    encoder.Forward(batch, {});  // an evaluation doesn't count
  }
  batch.step = 41;
  EXPECT_EQ(encoder.MakeContext(batch, training).step, 41u);
}

EncoderClassifier ToyClassifier(PretrainedConfig config = {}) {
  return {
      std::move(config), 7, "toy", std::make_shared<AddingEncoder>(2), {.initializer_range = 0.02}};
}

TEST(EncoderClassifier, AppliesItsHeadToTheFirstTokens) {
  PretrainedConfig config;
  config.SetNumLabels(3);
  EncoderClassifier model = ToyClassifier(std::move(config));
  model.Initialize(7);
  const Floats logits = model.Forward(TwoSequences()).logits.ToVector<float>();
  const Floats dense = ValuesOf(model, "classifier.dense.weight"),
               output = ValuesOf(model, "classifier.out_proj.weight");
  ASSERT_EQ(logits.size(), 6u);
  const double first[] = {14, 12};  // in every column
  for (size_t b = 0; b < 2; ++b) {
    for (size_t label = 0; label < 3; ++label) {
      double expected = 0;  // both biases start at 0
      for (size_t i = 0; i < kHidden; ++i) {
        double x = 0;
        for (size_t c = 0; c < kHidden; ++c) x += dense[i * kHidden + c] * first[b];
        expected += output[label * kHidden + i] * std::tanh(x);
      }
      EXPECT_NEAR(logits[b * 3 + label], expected, 1e-6) << b << ", " << label;
    }
  }
}

TEST(EncoderClassifier, ReturnsALossIfTheBatchHasLabels) {
  EncoderClassifier model = ToyClassifier();
  model.Initialize(7);
  EXPECT_FALSE(model.Forward(TwoSequences()).loss.defined());
  Batch batch = TwoSequences();
  batch.labels = Tensor::FromVector<int32_t>({1, 0});
  const SequenceClassifierOutput out = model.Forward(batch);
  const Floats logits = out.logits.ToVector<float>();
  double expected = 0;  // the mean of -log softmax(logits)[label]
  for (const size_t b : {0, 1}) {
    const size_t label = 1 - b;
    expected += std::log1p(std::exp(logits[2 * b + 1 - label] - logits[2 * b + label])) / 2;
  }
  EXPECT_NEAR(out.loss.Item(), expected, 1e-6);
}

TEST(EncoderClassifier, RefusesBatchesThatItCannotClassify) {
  EncoderClassifier model = ToyClassifier();
  model.Initialize(7);
  const Batch padded = Batch::FromPadded(Tensor::FromVector<int32_t>({0, 2}, {1, 2}),
                                         Tensor::FromVector<int32_t>({0, 1}, {1, 2}));
  EXPECT_EQ(MessageOf([&] { model.Forward(padded); }),
            "[toy] sequence 0 starts at position 1, but the classifier reads position 0");
  Batch empty = TwoSequences();
  empty.cu_seqlens = Tensor::FromVector<int32_t>({0});
  EXPECT_EQ(MessageOf([&] { model.Forward(empty); }), "[toy] the batch is empty");
}

TEST(EncoderClassifier, ItsSettingsHaveTheSeedAndTheEncoders) {
  const NamedSettings settings = ToyClassifier().Settings();
  const auto has = [&](const std::pair<std::string, std::string>& setting) {
    return std::find(settings.begin(), settings.end(), setting) != settings.end();
  };
  EXPECT_TRUE(has({"seed", "7"}));
  EXPECT_TRUE(has({"toy.layers", "2"}));
}

}  // namespace
}  // namespace lathe
