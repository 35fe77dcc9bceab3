// Compares each optimizer with PyTorch, Transformers or timm over ten steps
// (tests/golden/make_more_optimizers.py), and tests what all of them have in common. Runs on a
// device if the test links :check_op_on_device.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "lathe/core/autograd.h"
#include "lathe/core/base/file.h"
#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/core/json/json_text.h"
#include "lathe/core/ops/cast.h"
#include "lathe/optim/graphs/graph_recorder.h"
#include "lathe/optim/optimizers/optimizers.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

using nlohmann::json;
using Groups = std::vector<ParameterGroup>;

const json& Golden() {
  static const json golden =
      ParseJson(ReadFile("optim/optimizers/testdata/optimizers_golden.json"));
  return golden;
}

// A model of a matrix, a vector, and a stack of two matrices, on the checked device.
struct Toy : Module {
  Toy() {
    weight = RegisterParameter("weight", {3, 5}, Init::Normal(1));
    kernel = RegisterParameter("kernel", {2, 3, 4}, Init::Normal(1));
    bias = RegisterParameter("bias", {5}, Init::Normal(1));
    Initialize(3);
    To(CheckedDevice());
  }
  Tensor weight, kernel, bias;
};

void Set(const Tensor& to, const json& numbers) {
  Tensor(to).CopyFrom(Tensor::FromVector(numbers.get<std::vector<float>>()).Reshape(to.shape()));
}

std::unique_ptr<Optimizer> Make(const std::string& name, const json& o, Groups groups) {
  const double lr = o.value("lr", 0.01), decay = o.value("weight_decay", 0.0);
  const auto beta = [&](size_t i, double otherwise) {
    return o.contains("betas") ? o["betas"][i].get<double>() : otherwise;
  };
  if (name == "Adam") {
    return std::make_unique<Adam>(groups, AdamOptions{.lr = lr,
                                                      .beta1 = beta(0, 0.9),
                                                      .beta2 = beta(1, 0.999),
                                                      .eps = o.value("eps", 1e-8),
                                                      .weight_decay = decay});
  }
  if (name == "RMSprop") {
    return std::make_unique<RMSprop>(groups,
                                     RMSpropOptions{.lr = lr,
                                                    .alpha = o.value("alpha", 0.99),
                                                    .eps = o.value("eps", 1e-8),
                                                    .weight_decay = decay,
                                                    .momentum = o.value("momentum", 0.0),
                                                    .centered = o.value("centered", false)});
  }
  if (name == "Adagrad") {
    return std::make_unique<Adagrad>(groups, AdagradOptions{.lr = lr,
                                                            .lr_decay = o.value("lr_decay", 0.0),
                                                            .weight_decay = decay,
                                                            .initial_accumulator_value = o.value(
                                                                "initial_accumulator_value", 0.0)});
  }
  if (name == "Lion") {
    return std::make_unique<Lion>(
        groups,
        LionOptions{
            .lr = lr, .beta1 = beta(0, 0.9), .beta2 = beta(1, 0.99), .weight_decay = decay});
  }
  if (name == "Lamb") {
    LambOptions options{.lr = lr, .beta1 = beta(0, 0.9), .beta2 = beta(1, 0.999)};
    options.weight_decay = o.value("weight_decay", options.weight_decay);
    return std::make_unique<Lamb>(groups, options);
  }
  return std::make_unique<Adafactor>(groups,
                                     AdafactorOptions{.lr = lr,
                                                      .beta2_decay = o.value("beta2_decay", -0.8),
                                                      .d = o.value("d", 1.0),
                                                      .weight_decay = decay,
                                                      .transformers = name != "Adafactor"});
}

Groups GroupsOf(const Module& model, bool split, double lr) {
  std::vector<Parameter> all = model.Parameters();
  if (!split) return {{.parameters = all}};
  return {{.parameters = {all[0], all[1]}},
          {.parameters = {all[2]}, .lr = lr / 2, .weight_decay = 0}};
}

class MoreOptimizersTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  }
};

class MoreOptimizers : public MoreOptimizersTest, public testing::WithParamInterface<size_t> {
 protected:
  const json& Case() const { return Golden()["cases"][GetParam()]; }
  std::unique_ptr<Optimizer> MakeFor(const Module& model) const {
    const json& c = Case();
    return Make(c["optimizer"], c["options"],
                GroupsOf(model, c["groups"], c["options"].value("lr", 0.01)));
  }
  static void SetGrads(const Toy& toy, size_t step) {
    for (const Parameter& p : toy.Parameters()) {
      Set(Tensor(p.tensor).MaterializeGrad(), Golden()["gradients"][step][p.name]);
    }
  }
  static std::vector<float> Values(const Toy& toy) {
    std::vector<float> all;
    for (const Parameter& p : toy.Parameters()) {
      const std::vector<float> values = p.tensor.ToVector<float>();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
};
std::string NameOf(const testing::TestParamInfo<size_t>& parameter) {
  const json& c = Golden()["cases"][parameter.param];
  return c["optimizer"].get<std::string>() + std::to_string(parameter.param);
}
INSTANTIATE_TEST_SUITE_P(Cases, MoreOptimizers, testing::Range(size_t{0}, Golden()["cases"].size()),
                         NameOf);

TEST_P(MoreOptimizers, UpdatesEqualTheReference) {
  const json& c = Case();
  SCOPED_TRACE(DumpJson(c["options"]));
  Toy toy;
  for (const Parameter& p : toy.Parameters()) Set(p.tensor, c["values"][p.name]);
  const auto optimizer = MakeFor(toy);
  for (size_t step = 0; step < 10; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    optimizer->ZeroGrad();
    SetGrads(toy, step);
    optimizer->Step();
    const json& after = c["steps"][step];
    for (const Parameter& p : toy.Parameters()) {
      if (after.empty()) continue;
      const std::vector<float> values = p.tensor.ToVector<float>();
      const auto expected = after[p.name].get<std::vector<float>>();
      ASSERT_EQ(values.size(), expected.size());
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(values[i], expected[i], 3e-6 * std::max(1.0f, std::abs(expected[i])))
            << p.name << " " << i;
      }
    }
  }
  EXPECT_EQ(optimizer->step_count(), 10);
}

TEST_P(MoreOptimizers, GoesOnWithTheSameBits) {
  for (const size_t cut : {0, 1, 4}) {
    Toy whole, resumed;
    const auto first = MakeFor(whole), second = MakeFor(resumed);
    // The vector is thawed late, so its moments begin late, too.
    const auto make_step = [&](Toy& toy, Optimizer& optimizer, size_t step) {
      toy.bias.SetRequiresGrad(step >= 2);
      optimizer.ZeroGrad();
      SetGrads(toy, step);
      ClipGradNorm(optimizer, 0.5);
      optimizer.Step();
    };
    for (size_t step = 0; step < cut; ++step) make_step(whole, *first, step);
    StateDict state;
    CopyState(first->StateDict(), state);
    // Whatever the second one did before must not count.
    make_step(resumed, *second, 7);
    for (size_t i = 0; i < 3; ++i) {
      Tensor(resumed.Parameters()[i].tensor).CopyFrom(whole.Parameters()[i].tensor);
    }
    second->LoadStateDict(state);
    for (size_t step = cut; step < 8; ++step) {
      make_step(whole, *first, step);
      make_step(resumed, *second, step);
      ASSERT_EQ(Values(whole), Values(resumed)) << "step " << step << " after " << cut;
    }
  }
}

TEST_P(MoreOptimizers, FrozenParametersAndNarrowCopies) {
  Toy toy;
  const auto optimizer = MakeFor(toy);
  toy.kernel.SetRequiresGrad(false);
  const std::vector<float> kernel = toy.kernel.ToVector<float>(),
                           weight = toy.weight.ToVector<float>();
  for (size_t step = 0; step < 3; ++step) {
    LowPrecisionCopy(toy.weight, DType::kBF16);
    optimizer->ZeroGrad();
    SetGrads(toy, step);
    optimizer->Step();
    EXPECT_EQ(LowPrecisionCopy(toy.weight, DType::kBF16).To(DType::kF32).ToVector<float>(),
              toy.weight.To(DType::kBF16).To(DType::kF32).ToVector<float>());
  }
  EXPECT_EQ(toy.kernel.ToVector<float>(), kernel);
  EXPECT_NE(toy.weight.ToVector<float>(), weight);
}

// On a device the scaler's division and the clipping are queued, and a bad step changes nothing.
TEST_P(MoreOptimizers, ScalerSkipsOverflowAndClippingHoldsBackNaN) {
  Toy scaled, plain;
  const auto optimizer = MakeFor(scaled), reference = MakeFor(plain);
  optimizer->UseGradScaler(std::make_shared<GradScaler>(GradScalerOptions{.init_scale = 1024}));
  const auto set = [&](const Toy& toy, size_t step, double factor, bool overflow) {
    SetGrads(toy, step);
    for (const Parameter& p : toy.Parameters()) {
      Tensor grad = Tensor(p.tensor).MaterializeGrad();
      std::vector<float> values = grad.ToVector<float>();
      for (float& v : values) v = static_cast<float>(v * factor);
      if (overflow) values[1] = std::numeric_limits<float>::infinity();
      grad.CopyFrom(Tensor::FromVector(values).Reshape(grad.shape()));
    }
  };
  for (size_t step = 0; step < 4; ++step) {
    const bool overflow = step == 1;
    optimizer->grad_scaler()->BeginPass();
    optimizer->grad_scaler()->ScaleLossGradient(Tensor::Full({}, 1, DType::kF32, CheckedDevice()));
    optimizer->ZeroGrad();
    set(scaled, step, optimizer->grad_scaler()->scale(), overflow);
    ClipGradNorm(*optimizer, 100);
    optimizer->Step();
    EXPECT_EQ(optimizer->step_was_skipped(), overflow);
    if (overflow) continue;
    reference->ZeroGrad();
    set(plain, step, 1, false);
    ClipGradNorm(*reference, 100);
    reference->Step();
    const std::vector<float> got = Values(scaled), expected = Values(plain);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-5) << i;
  }
  EXPECT_EQ(optimizer->step_count(), 3);
  if (CheckedDevice().is_cpu()) return;
  const std::vector<float> before = Values(plain);
  reference->ZeroGrad();
  set(plain, 5, 1, true);
  ClipGradNorm(*reference, 1);
  reference->Step();
  EXPECT_EQ(Values(plain), before);
  EXPECT_EQ(reference->step_count(), 3);
}

// A recorded update gives the bits of an eager one, also when the rate changes.
TEST_P(MoreOptimizers, GraphsGiveTheSameBits) {
  if (CheckedDevice().is_cpu()) GTEST_SKIP() << "the host has no graphs";
  Toy recorded, eager;
  const auto with_graphs = MakeFor(recorded), without = MakeFor(eager);
  with_graphs->UseGraphs(true);
  for (size_t step = 0; step < 6; ++step) {
    for (const auto& [toy, optimizer] :
         {std::pair{&recorded, with_graphs.get()}, std::pair{&eager, without.get()}}) {
      optimizer->SetLr(0, 0.01 * static_cast<double>(step + 1));
      optimizer->ZeroGrad();
      SetGrads(*toy, step);
      ClipGradNorm(*optimizer, 0.5);
      optimizer->Step();
    }
    ASSERT_EQ(Values(recorded), Values(eager)) << step;
  }
  EXPECT_GT(with_graphs->graph_statistics().replayed, 0);
}

// Rows and columns without gradients have moments of 1e-30, whose products float32 does not hold.
TEST_F(MoreOptimizersTest, AdafactorOfZeroTinyAndLargeGradients) {
  const json golden = ParseJson(ReadFile("optim/optimizers/testdata/adafactor_golden.json"));
  struct Matrices : Module {
    explicit Matrices(const json& shapes) {
      for (const auto& [name, sizes] : shapes.items()) {
        const auto shape = sizes.get<std::vector<int64_t>>();
        RegisterParameter(name, Shape(shape.begin(), shape.end()), Init::Ones());
      }
      Initialize(1);
      To(CheckedDevice());
    }
  };
  Matrices matrices(golden["shapes"]);
  Adafactor optimizer(matrices.Parameters(), {.lr = golden["lr"], .transformers = true});
  for (size_t step = 0; step < golden["steps"].size(); ++step) {
    optimizer.ZeroGrad();
    for (const Parameter& p : matrices.Parameters())
      Set(Tensor(p.tensor).MaterializeGrad(), golden["steps"][step][p.name]["gradient"]);
    optimizer.Step();
    for (const Parameter& p : matrices.Parameters()) {
      const auto expected = golden["steps"][step][p.name]["values"].get<std::vector<float>>();
      const std::vector<float> values = p.tensor.ToVector<float>();
      for (size_t i = 0; i < values.size(); ++i)
        ASSERT_NEAR(values[i], expected[i], 3e-6) << step << " " << p.name << " " << i;
    }
  }
}

TEST_F(MoreOptimizersTest, SettingsTellThemApart) {
  Toy toy;
  std::vector<NamedSettings> all;
  for (const char* name :
       {"Adam", "RMSprop", "Adagrad", "Lion", "Lamb", "Adafactor", "TransformersAdafactor"}) {
    all.push_back(Make(name, json::object(), GroupsOf(toy, false, 1))->Settings());
  }
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(all[i], all[j]);
  }
}

TEST_F(MoreOptimizersTest, RefuseWrongOptionsAndStates) {
  Toy toy;
  const std::vector<Parameter> p = toy.Parameters();
  const auto message = [](const std::function<void()>& f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      return e.message();
    }
    return "no error";
  };
  EXPECT_EQ(message([&] { Adam(p, {.beta1 = 1}); }), "[Adam] beta1 must be in [0, 1) but is 1");
  EXPECT_EQ(message([&] { Lion(p, {.beta2 = -1}); }), "[Lion] beta2 must be in [0, 1) but is -1");
  EXPECT_EQ(message([&] { RMSprop(p, {.momentum = -1}); }),
            "[RMSprop] momentum must be at least 0 but is -1");
  EXPECT_EQ(message([&] { Adagrad(p, {.lr_decay = -2}); }),
            "[Adagrad] lr_decay must be at least 0 but is -2");
  EXPECT_EQ(message([&] { Lamb(p, {.eps = -1}); }), "[LAMB] eps must be at least 0 but is -1");
  EXPECT_EQ(message([&] { Adafactor(p, {.eps1 = NAN}); }),
            "[Adafactor] eps1 must be finite but is nan");
  EXPECT_EQ(message([&] { Adafactor(p, {.beta2_decay = -INFINITY}); }),
            "[Adafactor] beta2_decay must be finite and at most 0 but is -inf");
  EXPECT_EQ(message([&] { Adafactor(p, {.d = INFINITY}); }),
            "[Adafactor] d must be finite and at least 1 but is inf");
  EXPECT_EQ(message([&] { Adafactor(p, {.d = 0.5}); }),
            "[Adafactor] d must be finite and at least 1 but is 0.5");
  for (Optimizer* optimizer :
       std::initializer_list<Optimizer*>{new Lamb(p, {}), new Adafactor(p, {})}) {
    const std::unique_ptr<Optimizer> owner(optimizer);
    EXPECT_EQ(message([&] { optimizer->ShardUpdates(std::make_shared<CurrentShards>()); }),
              "[optimizer] this optimizer's update of an element depends on the whole parameter, "
              "so processes can't divide it");
    optimizer->ShardUpdates(nullptr);
  }
  Adafactor first(p, {}), second(p, {});
  for (const Parameter& parameter : p) Tensor(parameter.tensor).MaterializeGrad().Fill(1);
  first.Step();
  StateDict state;
  CopyState(first.StateDict(), state);
  std::vector<std::string> names;
  for (const StateTensor& t : state.tensors) names.push_back(t.name + " " + ToString(t.shape));
  EXPECT_EQ(names, (std::vector<std::string>{"variance/bias [5]", "row_var/kernel [2, 3, 1]",
                                             "col_var/kernel [2, 1, 4]", "row_var/weight [3, 1]",
                                             "col_var/weight [1, 5]"}));
  StateDict changed = state;
  changed.tensors[3].shape = {3};
  EXPECT_EQ(message([&] { second.LoadStateDict(changed); }),
            "[optimizer] the state's row_var/weight must have shape [3, 1] but has [3]");
  changed = state;
  changed.tensors.erase(changed.tensors.begin());
  EXPECT_EQ(message([&] { second.LoadStateDict(changed); }),
            "[optimizer] the state has no whole variance/bias");
  second.LoadStateDict(state);
}

}  // namespace
}  // namespace lathe
