// Compares layers and losses, and their gradients, with those that PyTorch computed in float64
// (tests/golden/make_layers.py and make_loss_limits.py), in float32 and in bfloat16. Runs on a
// device if the test links :check_op_on_device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "lathe/core/autograd.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/nn/losses/losses.h"
#include "lathe/nn/modules/functions.h"
#include "lathe/nn/modules/transformer.h"
#include "lathe/nn/state/module_state.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

using nlohmann::json;
using NamedTensorMap = std::map<std::string, Tensor>;

const json& Golden() {
  static const json golden = ParseJson(ReadFile("nn/modules/testdata/modules_golden.json"));
  return golden;
}

Shape ShapeOf(const json& stored) {
  Shape shape;
  for (const json& size : stored["shape"]) shape.push_back(size);
  return shape;
}

std::vector<double> NumbersOf(const json& stored) {
  return stored["values"].get<std::vector<double>>();
}

// Returns the stored numbers on the host.
Tensor TensorOf(const json& stored, DType dtype) {
  return Tensor::FromVector(NumbersOf(stored), ShapeOf(stored)).To(dtype);
}

Reduction ReductionOf(const json& options) {
  const std::string name = options.value("reduction", "mean");
  if (name == "batchmean") return Reduction::kBatchMean;
  return name == "mean" ? Reduction::kMean : name == "sum" ? Reduction::kSum : Reduction::kNone;
}

// A case: what it is called with, and its module if it has one.
struct Call {
  const json& options;
  NamedTensorMap x;  // inputs and constants
  Module* module = nullptr;

  Tensor Get(const std::string& name) const {
    const auto found = x.find(name);
    return found == x.end() ? Tensor() : found->second;
  }
};

nn::ClassOptions ClassOptionsOf(const Call& c) {
  return {.weight = c.Get("weight"),
          .ignore_index = c.options.value("ignore_index", kIgnoreIndex),
          .label_smoothing = c.options.value("label_smoothing", 0.0),
          .reduction = ReductionOf(c.options)};
}

using Function = std::function<Tensor(const Call&)>;

// An activation or another module without parameters.
template <typename M, typename... Args>
Function Apply(Args... args) {
  return [=](const Call& c) { return M(args...).Forward(c.Get("x")); };
}

const std::map<std::string, Function>& Losses() {
  static const std::map<std::string, Function> losses = {
      {"l1_loss",
       [](const Call& c) {
         return nn::L1Loss(c.Get("input"), c.Get("target"), ReductionOf(c.options));
       }},
      {"mse_loss",
       [](const Call& c) {
         return nn::MseLoss(c.Get("input"), c.Get("target"), ReductionOf(c.options));
       }},
      {"smooth_l1_loss",
       [](const Call& c) {
         return nn::SmoothL1Loss(c.Get("input"), c.Get("target"),
                                 {.beta = c.options["beta"], .reduction = ReductionOf(c.options)});
       }},
      {"bce_loss",
       [](const Call& c) {
         return nn::BceLoss(c.Get("input"), c.Get("target"), ReductionOf(c.options));
       }},
      {"bce_with_logits_loss",
       [](const Call& c) {
         return nn::BceWithLogitsLoss(c.Get("input"), c.Get("target"),
                                      {.weight = c.Get("weight"),
                                       .pos_weight = c.Get("pos_weight"),
                                       .reduction = ReductionOf(c.options)});
       }},
      {"kl_div_loss",
       [](const Call& c) {
         return nn::KlDivLoss(
             c.Get("input"), c.Get("target"),
             {.log_target = c.options["log_target"], .reduction = ReductionOf(c.options)});
       }},
      {"nll_loss",
       [](const Call& c) {
         return nn::NllLoss(c.Get("input"), c.Get("target"), ClassOptionsOf(c));
       }},
      {"cross_entropy",
       [](const Call& c) {
         return nn::CrossEntropy(c.Get("input"), c.Get("target"), ClassOptionsOf(c));
       }},
      {"cosine_embedding_loss",
       [](const Call& c) {
         return nn::CosineEmbeddingLoss(
             c.Get("a"), c.Get("b"), c.Get("y"),
             {.margin = c.options["margin"], .reduction = ReductionOf(c.options)});
       }},
      {"cosine_similarity",
       [](const Call& c) { return nn::CosineSimilarity(c.Get("a"), c.Get("b")); }},
      {"triplet_margin_loss",
       [](const Call& c) {
         return nn::TripletMarginLoss(c.Get("anchor"), c.Get("positive"), c.Get("negative"),
                                      {.margin = c.options["margin"],
                                       .p = c.options["p"],
                                       .swap = c.options["swap"],
                                       .reduction = ReductionOf(c.options)});
       }},
  };
  return losses;
}

const std::map<std::string, Function>& Layers() {
  static const std::map<std::string, Function> layers = {
      {"ReLU", Apply<nn::ReLU>()},
      {"GELU", Apply<nn::GELU>()},
      {"GELUTanh", Apply<nn::GELU>(true)},
      {"Tanh", Apply<nn::Tanh>()},
      {"SiLU", Apply<nn::SiLU>()},
      {"Sigmoid", Apply<nn::Sigmoid>()},
      {"Mish", Apply<nn::Mish>()},
      {"Identity", Apply<nn::Identity>()},
      {"Softmax", Apply<nn::Softmax>()},
      {"LogSoftmax", Apply<nn::LogSoftmax>()},
      {"Flatten",
       [](const Call& c) {
         return nn::Flatten(c.options["start"], c.options["end"]).Forward(c.Get("x"));
       }},
      {"RMSNorm",
       [](const Call& c) { return dynamic_cast<nn::RmsNorm&>(*c.module).Forward(c.Get("x")); }},
      {"Sequential",
       [](const Call& c) { return dynamic_cast<nn::Sequential&>(*c.module).Forward(c.Get("x")); }},
      {"MultiheadAttention",
       [](const Call& c) {
         return dynamic_cast<nn::MultiheadAttention&>(*c.module).Forward(c.Get("x"), c.Get("mask"));
       }},
      {"TransformerEncoder",
       [](const Call& c) {
         if (auto* layer = dynamic_cast<nn::TransformerEncoderLayer*>(c.module)) {
           return layer->Forward(c.Get("x"), c.Get("mask"));
         }
         return dynamic_cast<nn::TransformerEncoder&>(*c.module).Forward(c.Get("x"), c.Get("mask"));
       }},
  };
  return layers;
}

// Returns the module of a case, or null.
std::unique_ptr<Module> MakeModule(const json& c) {
  const json& o = c["options"];
  if (c["op"] == "RMSNorm")
    return std::make_unique<nn::RmsNorm>(ShapeOf(c["inputs"]["x"])[1], 1e-5);
  if (c["op"] == "Sequential") {
    auto model = std::make_unique<nn::Sequential>();
    const int64_t in = o["in"], between = o["between"];
    model->Add<nn::Linear>(in, between, nn::DefaultInit(in)).Add<nn::GELU>();
    model->Add<nn::LayerNorm>(between, 1e-5);
    model->Add<nn::Linear>(between, 2, nn::DefaultInit(between));
    return model;
  }
  if (c["op"] == "MultiheadAttention") {
    return std::make_unique<nn::MultiheadAttention>(6, 2, 0, o["bias"]);
  }
  if (c["op"] != "TransformerEncoder") return nullptr;
  const nn::TransformerEncoderOptions options = {
      .d_model = 4,
      .nhead = 2,
      .dim_feedforward = 6,
      .activation = o["activation"] == "gelu" ? ActivationKind::kGelu : ActivationKind::kRelu,
      .norm_first = o["norm_first"],
      .final_norm = o["final_norm"]};
  if (o.contains("layer")) return std::make_unique<nn::TransformerEncoderLayer>(options);
  return std::make_unique<nn::TransformerEncoder>(options, 2);
}

// Expects errors of at most `limit`, relative to 1 + the largest number.
void ExpectClose(const Tensor& got, const json& stored, double limit, const std::string& what) {
  ASSERT_TRUE(got.defined()) << what;
  ASSERT_EQ(got.shape(), ShapeOf(stored)) << what;
  const std::vector<double> values = got.To(Device{}).To(DType::kF64).ToVector<double>();
  const std::vector<double> expected = NumbersOf(stored);
  double largest = 0;
  for (const double e : expected) largest = std::max(largest, std::abs(e));
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(values[i], expected[i], limit * (1 + largest)) << what << " " << i;
  }
}

void RunCase(const json& c, DType dtype, double limit) {
  const std::string op = c["op"];
  SCOPED_TRACE(op + " " + DumpJson(c["options"]) + " in " + ToString(dtype));
  const Device device = CheckedDevice();
  const auto loss = Losses().find(op);
  const Function& function = loss != Losses().end() ? loss->second : Layers().at(op);
  Call call{.options = c["options"], .x = {}};
  NamedTensorMap inputs;
  for (const auto& [name, stored] : c["inputs"].items()) {
    inputs[name] = TensorOf(stored, dtype).To(device).SetRequiresGrad(true);
    call.x[name] = inputs[name];
  }
  for (const auto& [name, stored] : c["constants"].items()) {
    const bool is_integer = (name == "target" && (op == "nll_loss" || op == "cross_entropy")) ||
                            name == "mask" || name == "y";
    call.x[name] = TensorOf(stored, is_integer ? DType::kI64 : dtype).To(device);
  }
  const std::unique_ptr<Module> module = MakeModule(c);
  if (module != nullptr) {
    StateDict state;
    for (const auto& [name, stored] : c["parameters"].items()) {
      state.Add(name, TensorOf(stored, DType::kF32));
    }
    LoadModuleState(*module, state);  // strict: PyTorch's names
    module->To(device);
    module->SetComputeDType(dtype);
    call.module = module.get();
  }
  const Tensor output = function(call);
  ExpectClose(output, c["output"], limit, "output");
  Backward(output, TensorOf(c["grad_output"], output.dtype()).To(device));
  for (const auto& [name, input] : inputs) {
    ExpectClose(input.grad(), c["grads"][name], limit, "gradient of " + name);
  }
  if (module == nullptr) return;
  for (const Parameter& p : module->Parameters()) {
    ExpectClose(p.tensor.grad(), c["parameter_grads"][p.name], limit, "gradient of " + p.name);
  }
}

class Modules : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(Modules, EqualPyTorchInFloat32) {
  EXPECT_GE(Golden()["cases"].size(), 80u);
  for (const json& c : Golden()["cases"]) RunCase(c, DType::kF32, 1e-5);
}

TEST_F(Modules, EqualPyTorchInBFloat16) {
  for (const json& c : Golden()["cases"]) {
    RunCase(c, DType::kBF16, Losses().contains(c["op"]) ? 0.005 : 0.03);
  }
}

TEST_F(Modules, LossesInFloat64) {
  if (!CheckedDevice().is_cpu()) GTEST_SKIP() << "float64 works on the CPU only";
  for (const json& c : Golden()["cases"]) {
    if (Losses().contains(c["op"])) RunCase(c, DType::kF64, 1e-6);  // the numbers have 7 digits
  }
}

// Each element must be right relative to its size. Means would hide those that are small.
void RunLimits(const json& c, DType dtype) {
  const std::string loss = c["loss"];
  const json& o = c["options"];
  SCOPED_TRACE(loss + " " + DumpJson(o) + " " + DumpJson(c["target"]));
  const auto tensor = [&](const json& numbers) {
    const auto values = numbers.get<std::vector<double>>();
    Tensor t = Tensor::FromVector(values).To(dtype);
    if (loss == "triplet") t = t.Reshape({t.numel() / 2, 2});
    return t.To(CheckedDevice());
  };
  NamedTensorMap x;
  for (const auto& [name, numbers] : c["inputs"].items())
    x[name] = tensor(numbers).SetRequiresGrad(true);
  Tensor y;
  if (loss == "smooth_l1") {
    y = nn::SmoothL1Loss(x["input"], tensor(c["target"]),
                         {.beta = o["beta"], .reduction = Reduction::kNone});
  } else if (loss == "bce") {
    y = nn::BceLoss(x["input"], tensor(c["target"]), Reduction::kNone);
  } else {
    y = nn::TripletMarginLoss(x["anchor"], x["positive"], x["negative"],
                              {.margin = o.value("margin", 1.0),
                               .p = o.value("p", 2.0),
                               .eps = o.value("eps", 1e-6),
                               .swap = o.value("swap", false),
                               .reduction = Reduction::kNone});
  }
  const auto expect = [&](const Tensor& got, const json& numbers, const std::string& what) {
    const std::vector<double> values = got.To(Device{}).To(DType::kF64).ToVector<double>();
    const auto expected = numbers.get<std::vector<double>>();
    ASSERT_EQ(values.size(), expected.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const double limit = 2e-6 * std::abs(expected[i]) + c["slack"].get<double>() + 1e-38;
      EXPECT_NEAR(values[i], expected[i], limit) << what << " " << i;
    }
  };
  expect(y, c["losses"], "loss");
  Backward(Sum(y));
  for (const auto& [name, input] : x) expect(input.grad(), c["grads"][name], name);
}

TEST_F(Modules, LossesAtTheirLimits) {
  const json golden = ParseJson(ReadFile("nn/modules/testdata/loss_limits_golden.json"));
  for (const json& c : golden["cases"]) {
    RunLimits(c, DType::kF32);
    if (CheckedDevice().is_cpu()) RunLimits(c, DType::kF64);
  }
}

TEST_F(Modules, SmoothL1OfInfinityAndNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  Tensor x = Tensor::FromVector<float>({kInfinity, -kInfinity, kNaN}).To(CheckedDevice());
  x.SetRequiresGrad(true);
  const Tensor target = Tensor::Zeros({3}, DType::kF32, CheckedDevice());
  const Tensor y = nn::SmoothL1Loss(x, target, {.reduction = Reduction::kNone});
  Backward(y, Tensor::Full({3}, 1, DType::kF32, CheckedDevice()));
  const std::vector<float> losses = y.ToVector<float>(), grads = x.grad().ToVector<float>();
  EXPECT_EQ(losses[0], kInfinity);
  EXPECT_EQ(losses[1], kInfinity);
  EXPECT_TRUE(std::isnan(losses[2]));
  EXPECT_EQ(grads[0], 1);
  EXPECT_EQ(grads[1], -1);
  EXPECT_TRUE(std::isnan(grads[2]));
}

}  // namespace
}  // namespace lathe
