// Tests talking heads beside the golden model: against heads that do not talk, with dropout, and on
// the emulated device.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/error.h"
#include "lathe/core/device_backend.h"
#include "lathe/models/pretrained.h"

namespace lathe {
namespace {

using Json = nlohmann::json;
using Floats = std::vector<float>;
using Model = std::shared_ptr<SequenceClassifier>;

constexpr int64_t kHeads = 3;

Model Make(const Json& changes) {
  Json config = {{"model_type", "deberta"},
                 {"vocab_size", 30},
                 {"hidden_size", 12},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", kHeads},
                 {"intermediate_size", 14},
                 {"max_position_embeddings", 16},
                 {"initializer_range", 0.3},
                 {"relative_attention", true},
                 {"pos_att_type", "c2p|p2c"},
                 {"hidden_dropout_prob", 0},
                 {"attention_probs_dropout_prob", 0}};
  config.update(changes);
  return AutoModelForSequenceClassification::FromConfig(PretrainedConfig::FromJson(config),
                                                        {.num_labels = 3});
}

Batch Texts() {
  return Batch::Pack({{2, 7, 9, 3}, {5}, {2, 8, 3, 11, 4, 6}}, {},
                     Tensor::FromVector<int64_t>({2, 0, 1}));
}

// Gives `to` the parameters of `from`, which has the same but for the matrices that mix heads.
// Those become `scores` and `probabilities`.
void Copy(const SequenceClassifier& from, SequenceClassifier& to, const Floats& scores,
          const Floats& probabilities) {
  size_t i = 0;
  const std::vector<Parameter> source = from.Parameters();
  for (const Parameter& p : to.Parameters()) {
    Tensor target = p.tensor;
    if (p.name.ends_with("head_logits_proj.weight")) {
      target.CopyFrom(Tensor::FromVector(scores, {kHeads, kHeads}));
    } else if (p.name.ends_with("head_weights_proj.weight")) {
      target.CopyFrom(Tensor::FromVector(probabilities, {kHeads, kHeads}));
    } else {
      ASSERT_LT(i, source.size());
      ASSERT_EQ(source[i].name, p.name);
      target.CopyFrom(source[i++].tensor);
    }
  }
  ASSERT_EQ(i, source.size());
}

void ExpectNear(const Floats& a, const Floats& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << i;
}

TEST(TalkingHeads, MixesThatUndoEachOtherChangeNothing) {
  const Model plain = Make(Json::object()), talking = Make({{"talking_head", true}});
  const Floats expected = plain->Forward(Texts()).logits.ToVector<float>();
  const Floats same = {1, 0, 0, 0, 1, 0, 0, 0, 1};
  // Each head gets the scores of the next one. Its probabilities go back there.
  const Floats next = {0, 1, 0, 0, 0, 1, 1, 0, 0}, back = {0, 0, 1, 1, 0, 0, 0, 1, 0};
  Copy(*plain, *talking, same, same);
  ExpectNear(talking->Forward(Texts()).logits.ToVector<float>(), expected, 1e-5);
  Copy(*plain, *talking, next, back);
  ExpectNear(talking->Forward(Texts()).logits.ToVector<float>(), expected, 1e-5);
  // With half the scores and twice the probabilities the softmax is flatter.
  Copy(*plain, *talking, {.5, 0, 0, 0, .5, 0, 0, 0, .5}, {2, 0, 0, 0, 2, 0, 0, 0, 2});
  const Floats other = talking->Forward(Texts()).logits.ToVector<float>();
  EXPECT_GT(std::abs(other[0] - expected[0]), 1e-3);
}

TEST(TalkingHeads, TheShortcutForFirstTokensChangesNothing) {
  const Model model = Make({{"talking_head", true}});
  ExpectNear(model->Forward(Texts()).logits.ToVector<float>(),
             model->Forward(Texts(), {.output_hidden_states = true}).logits.ToVector<float>(),
             1e-5);
}

// Returns the loss and all gradients of a training pass with dropout.
Floats Pass(Device device, DType dtype, bool checkpointing) {
  const Model model = Make({{"talking_head", true},
                            {"hidden_dropout_prob", 0.2},
                            {"attention_probs_dropout_prob", 0.3}});
  model->To(device);
  model->SetComputeDType(dtype);
  model->SetGradientCheckpointing(checkpointing);
  model->Train();
  const Tensor loss = model->Forward(Texts()).loss;
  Backward(loss);
  Floats all = {static_cast<float>(loss.Item())};
  for (const Parameter& p : model->Parameters()) {
    const Floats grad = p.tensor.grad().ToVector<float>();
    all.insert(all.end(), grad.begin(), grad.end());
  }
  return all;
}

TEST(TalkingHeads, DropoutIsTheSameOnADeviceAndWithCheckpoints) {
  const Device cpu, gpu = ChooseDevice("cuda");
  const Floats expected = Pass(cpu, DType::kF32, false);
  ExpectNear(Pass(cpu, DType::kF32, true), expected, 0);
  ExpectNear(Pass(gpu, DType::kF32, false), expected, 1e-4);
  ExpectNear(Pass(gpu, DType::kF32, true), expected, 1e-4);
  for (const Device device : {cpu, gpu}) {
    ExpectNear(Pass(device, DType::kBF16, false), expected, 0.1);
  }
}

TEST(TalkingHeads, AGpuTakes256Columns) {
  const Model model = Make({{"talking_head", true}, {"hidden_size", 258}});
  model->Forward(Texts());
  model->To(ChooseDevice("cuda"));
  try {
    model->Forward(Texts());
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              "[deberta] hidden_size is 258, but a GPU takes talking heads up to 256 only");
    EXPECT_EQ(error.hint(), "use the CPU for this model");
  }
}

}  // namespace
}  // namespace lathe
