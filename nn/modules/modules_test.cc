// Properties and errors of layers and losses. Runs on a device if the test links
// :check_op_on_device.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/nn/layers.h"
#include "lathe/nn/losses/losses.h"
#include "lathe/nn/modules/functions.h"
#include "lathe/nn/modules/transformer.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

class Modules : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  }
};

// Padding may lie anywhere, and a mask of ones means the same as no mask.
TEST_F(Modules, PackingTakesAndReturnsTokens) {
  const Tensor mask = Tensor::FromVector<int32_t>({0, 1, 1, 1, 1, 0}, {2, 3}).To(CheckedDevice());
  const nn::Packing packing(mask, CheckedDevice());
  EXPECT_EQ(packing.num_tokens(), 4);
  EXPECT_EQ(packing.context().sequences.cu_seqlens.ToVector<int32_t>(),
            (std::vector<int32_t>{0, 2, 4}));
  EXPECT_EQ(packing.context().sequences.max_seqlen, 2);
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {2, 3, 1}).To(CheckedDevice());
  EXPECT_EQ(packing.Pack(x).ToVector<float>(), (std::vector<float>{2, 3, 4, 5}));
  EXPECT_EQ(packing.Unpack(packing.Pack(x)).ToVector<float>(),
            (std::vector<float>{0, 2, 3, 4, 5, 0}));
  const nn::Packing full(2, 3, CheckedDevice());
  EXPECT_EQ(full.Unpack(full.Pack(x)).ToVector<float>(), x.ToVector<float>());
}

// Dropout's masks depend on seed, step and place, and eval has none.
TEST_F(Modules, EncodersDropByTheContext) {
  for (const bool norm_first : {false, true}) {
    nn::TransformerEncoder encoder(
        {.d_model = 8, .nhead = 2, .dim_feedforward = 16, .dropout = 0.5, .norm_first = norm_first},
        2);
    encoder.Initialize(1);
    encoder.To(CheckedDevice());
    const nn::Packing packing(2, 3, CheckedDevice());
    std::vector<float> numbers(6 * 8);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<float>(i));
    const Tensor x = Tensor::FromVector(numbers, {6, 8}).To(CheckedDevice());
    const auto run = [&](bool training, uint32_t step) {
      nn::ForwardContext context = packing.context();
      context.training = training;
      context.seed = 5;
      context.step = step;
      return encoder.Forward(x, context).ToVector<float>();
    };
    EXPECT_EQ(run(true, 1), run(true, 1));
    EXPECT_NE(run(true, 1), run(true, 2));
    EXPECT_NE(run(true, 1), run(false, 1));
    EXPECT_EQ(run(false, 1), run(false, 2));
  }
}

// Under mixed precision an encoder's result is float32, so that a head and a loss can follow.
TEST_F(Modules, EncodersReturnFloat32) {
  const Tensor mask = Tensor::FromVector<int32_t>({1, 1, 0, 1, 1, 1}, {2, 3}).To(CheckedDevice());
  std::vector<float> numbers(6 * 8);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<float>(i));
  const Tensor x = Tensor::FromVector(numbers, {2, 3, 8}).To(CheckedDevice());
  for (const bool norm_first : {false, true}) {
    for (const bool final_norm : {false, true}) {
      nn::TransformerEncoder encoder({.d_model = 8,
                                      .nhead = 2,
                                      .dim_feedforward = 16,
                                      .norm_first = norm_first,
                                      .final_norm = final_norm},
                                     2);
      encoder.Initialize(1);
      encoder.To(CheckedDevice());
      const std::vector<float> wide = encoder(x, mask).ToVector<float>();
      encoder.SetComputeDType(DType::kBF16);
      const Tensor y = encoder(x, mask);
      ASSERT_EQ(y.dtype(), DType::kF32);
      const std::vector<float> narrow = y.ToVector<float>();
      EXPECT_NE(narrow, wide);
      for (size_t i = 0; i < wide.size(); ++i) EXPECT_NEAR(narrow[i], wide[i], 0.1) << i;
      Backward(Sum(Mul(y, x)));
      for (const Parameter& p : encoder.Parameters())
        EXPECT_EQ(p.tensor.grad().dtype(), DType::kF32) << p.name;
    }
  }
}

std::string MessageOf(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.message();
  }
  return "no error";
}

TEST_F(Modules, ErrorsNameWhatDoesNotFit) {
  const Tensor a = Tensor::Zeros({2, 3}), b = Tensor::Zeros({3, 2});
  const Tensor labels = Tensor::FromVector<int64_t>({0, 7});
  EXPECT_EQ(MessageOf([&] { nn::L1Loss(a, b); }),
            "[l1_loss] expected inputs of one shape but got [2, 3] and [3, 2]");
  const Tensor half = Tensor::Full({2}, 0.5), far = Tensor::FromVector<float>({0, 1.5f});
  EXPECT_EQ(MessageOf([&] { nn::BceLoss(far, half); }),
            "[bce_loss] input must be from 0 to 1 but element 1 is 1.5");
  EXPECT_EQ(MessageOf([&] { nn::BceLoss(half, far); }),
            "[bce_loss] target must be from 0 to 1 but element 1 is 1.5");
  EXPECT_EQ(MessageOf([&] { nn::MseLoss(a, a.To(DType::kF64)); }),
            "[mse_loss] expected inputs of one floating dtype but got float32 and float64");
  EXPECT_EQ(MessageOf([&] { nn::NllLoss(a, labels); }), "[nll_loss] target[1] is 7, not in [0, 3)");
  EXPECT_EQ(MessageOf([&] { nn::CrossEntropy(a, labels.Slice(0, 1)); }),
            "[cross_entropy] target must have shape [2] int64 but has [1] int64");
  EXPECT_EQ(MessageOf([&] { nn::CrossEntropy(a, labels, {.weight = Tensor::Zeros({2})}); }),
            "[cross_entropy] weight must have shape [3] and a floating dtype but has [2] float32");
  EXPECT_EQ(MessageOf([&] { nn::L1Loss(a, a, Reduction::kBatchMean); }),
            "[l1_loss] there is no kBatchMean; use kMean, kSum or kNone");
  EXPECT_EQ(MessageOf([&] {
              nn::CosineEmbeddingLoss(a, a, Tensor::FromVector<float>({1, 0}));
            }),
            "[cosine_embedding_loss] y must be 1 or -1 but y[1] is 0");
  EXPECT_EQ(MessageOf([&] { nn::TripletMarginLoss(a, a, a, {.p = 3}); }),
            "[triplet_margin_loss] p must be 1 or 2 but is 3");
  EXPECT_EQ(MessageOf([&] { nn::MultiheadAttention(6, 4); }),
            "[multihead_attention] embed_dim must be a multiple of num_heads but is 6 for 4 heads");
  EXPECT_EQ(MessageOf([&] {
              nn::Packing(Tensor::Zeros({2, 3}, DType::kI32));
            }),
            "[packing] sequence 0 of the attention_mask has no token");
  EXPECT_EQ(MessageOf([&] { const nn::Packing packing(a); }),
            "[packing] attention_mask must have an integer or bool dtype but has float32");
  EXPECT_EQ(MessageOf([&] { nn::Flatten(2).Forward(a); }),
            "[flatten] dimensions 2 to -1 do not fit shape [2, 3]");
  const nn::ModuleList<nn::ReLU> list;
  EXPECT_EQ(MessageOf([&] { list[0]; }), "[module_list] expected an index in [0, 0) but got 0");
}

TEST_F(Modules, LossesOfNothing) {
  const Tensor logits = Tensor::Zeros({2, 3}).SetRequiresGrad(true);
  const Tensor ignored = Tensor::FromVector<int64_t>({-100, -100});
  EXPECT_TRUE(std::isnan(nn::NllLoss(logits, ignored).Item()));
  EXPECT_TRUE(std::isnan(nn::CrossEntropy(logits, ignored, {.label_smoothing = 0.1}).Item()));
  EXPECT_EQ(nn::CrossEntropy(logits, ignored, {.reduction = Reduction::kSum}).Item(), 0);
  EXPECT_EQ(nn::NllLoss(logits, ignored, {.reduction = Reduction::kNone}).ToVector<float>(),
            (std::vector<float>{0, 0}));
  EXPECT_TRUE(std::isnan(nn::MseLoss(Tensor::Zeros({0, 3}), Tensor::Zeros({0, 3})).Item()));
}

// Labels on a device are not read back: one out of range makes its row's loss NaN.
TEST_F(Modules, LabelsOnADevice) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device";
  const Device device = CheckedDevice();
  const Tensor logs =
      LogSoftmaxLast(Tensor::FromVector<float>({1, 2, 3, 3, 2, 1, 0, 0, 4, 5, 0, 1}, {4, 3}));
  const Tensor weight = Tensor::FromVector<float>({0.5f, 2, 3});
  const auto run = [&](const Tensor& labels, const nn::ClassOptions& options, bool nll) {
    return nll ? nn::NllLoss(logs.To(device), labels.To(device), options)
               : nn::CrossEntropy(logs.To(device), labels.To(device), options);
  };
  for (const bool nll : {true, false}) {
    for (const int64_t wrong : {int64_t{3}, int64_t{-1}, int64_t{1} << 40}) {
      const Tensor labels = Tensor::FromVector<int64_t>({0, wrong, kIgnoreIndex, 2});
      const std::vector<float> rows =
          run(labels, {.weight = weight.To(device), .reduction = Reduction::kNone}, nll)
              .ToVector<float>();
      for (size_t i = 0; i < 4; ++i) EXPECT_EQ(std::isnan(rows[i]), i == 1) << i;
      EXPECT_EQ(rows[2], 0);
      EXPECT_TRUE(std::isnan(run(labels, {.weight = weight}, nll).Item()));
    }
    // As on the host, a mean of nothing is NaN and a sum of nothing 0.
    const Tensor ignored = Tensor::Full({4}, 7, DType::kI64);
    EXPECT_TRUE(std::isnan(run(ignored, {.weight = weight, .ignore_index = 7}, nll).Item()));
    const nn::ClassOptions sum = {.ignore_index = 7, .reduction = Reduction::kSum};
    EXPECT_EQ(run(ignored, sum, nll).Item(), 0);
  }
}

TEST_F(Modules, ContainersNameTheirModulesByNumber) {
  nn::Sequential model(std::make_shared<nn::Linear>(2, 3, nn::DefaultInit(2)),
                       std::make_shared<nn::ReLU>());
  nn::ModuleList<nn::Linear> list;
  list.Add(2, 3, nn::DefaultInit(2)).Add(3, 1, nn::DefaultInit(3), ActivationKind::kNone, false);
  std::vector<std::string> names;
  for (const Parameter& p : list.Parameters()) names.push_back(p.name);
  EXPECT_EQ(names, (std::vector<std::string>{"0.weight", "0.bias", "1.weight"}));
  EXPECT_EQ(list.size(), 2);
  EXPECT_EQ(model.Parameters()[1].name, "0.bias");
  model.Train();
  EXPECT_TRUE(model.training());
}

TEST_F(Modules, EmbeddingTakesIdsOfAnyShape) {
  nn::Embedding table(5, 2, 1.0);
  table.Initialize(3);
  table.To(CheckedDevice());
  const Tensor ids = Tensor::FromVector<int32_t>({4, 0, 1, 1, 2, 4}).To(CheckedDevice());
  const std::vector<float> rows = table(ids).ToVector<float>();
  for (const Shape& shape : {Shape{6}, Shape{3, 2}, Shape{1, 3, 2}}) {
    Shape expected = shape;
    expected.push_back(2);
    const Tensor y = table(ids.Reshape(shape));
    EXPECT_EQ(y.shape(), expected);
    EXPECT_EQ(y.ToVector<float>(), rows);
    table.weight.SetGrad({});
    Backward(Sum(y));
    EXPECT_EQ(table.weight.grad().ToVector<float>(),
              (std::vector<float>{1, 1, 2, 2, 1, 1, 0, 0, 2, 2}));
  }
  EXPECT_EQ(table(ids.Slice(0, 1).Reshape({})).shape(), Shape{2});
  EXPECT_EQ(table(ids.Slice(0, 0).Reshape({0, 3})).shape(), (Shape{0, 3, 2}));
}

}  // namespace
}  // namespace lathe
