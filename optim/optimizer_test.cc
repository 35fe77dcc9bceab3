#include "lathe/optim/optimizer.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "lathe/core/autograd.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/nn/layers.h"
#include "lathe/optim/optimizer_testing.h"

namespace lathe {
namespace {

using nlohmann::json;

void ExpectNear(const Tensor& tensor, const json& expected, const std::string& what) {
  const std::vector<float> values = tensor.ToVector<float>();
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const float e = expected[i];
    EXPECT_NEAR(values[i], e, 1e-6 * std::max(1.0f, std::abs(e))) << what << " " << i;
  }
}

std::unique_ptr<Optimizer> MakeOptimizer(const json& c, std::vector<ParameterGroup> groups) {
  const json& o = c["options"];
  if (c["optimizer"] == "AdamW") {
    AdamWOptions options;
    options.lr = o["lr"];
    options.eps = o.value("eps", options.eps);
    options.weight_decay = o.value("weight_decay", options.weight_decay);
    if (o.contains("betas")) {
      options.beta1 = o["betas"][0];
      options.beta2 = o["betas"][1];
    }
    return std::make_unique<AdamW>(std::move(groups), options);
  }
  SGDOptions options;
  options.lr = o["lr"];
  options.momentum = o.value("momentum", 0.0);
  options.dampening = o.value("dampening", 0.0);
  options.weight_decay = o.value("weight_decay", 0.0);
  options.nesterov = o.value("nesterov", false);
  return std::make_unique<SGD>(std::move(groups), options);
}

TEST(OptimizerTest, UpdatesEqualPyTorch) {
  const json golden = ParseJson(ReadFile("optim/testdata/optim_golden.json"));
  for (const json& c : golden["optimizers"]) {
    SCOPED_TRACE(c["optimizer"].get<std::string>() + " " + DumpJson(c["options"]));
    const bool no_decay_bias = c["no_decay_bias"];
    const Parameter weight = MakeParameter("weight", c["weight"], {3, 5});
    const Parameter bias = MakeParameter("bias", c["bias"], {5}, !no_decay_bias);
    const double decay = c["options"].value("weight_decay", -1.0);
    auto optimizer = MakeOptimizer(c, DecayGroups({weight, bias}, decay));
    optimizer->ZeroGrad();
    optimizer->arena().grads();
    int step = 0;
    for (const json& row : c["steps"]) {
      SCOPED_TRACE(++step);
      for (int group = 0; group < optimizer->num_groups(); ++group) {
        optimizer->SetLr(group, row["lr"]);
      }
      SetGrad(weight, row["weight_grad"]);
      SetGrad(bias, row["bias_grad"]);
      if (!c["clip"].is_null()) {
        const double norm = ClipGradNorm(*optimizer, c["clip"]).Item();
        EXPECT_NEAR(norm, row["norm"].get<double>(), 1e-6 * norm);
        ExpectNear(weight.tensor.grad(), row["clipped"], "clipped");
      }
      optimizer->Step();
      ExpectNear(weight.tensor, row["weight"], "weight");
      ExpectNear(bias.tensor, row["bias"], "bias");
    }
    EXPECT_EQ(optimizer->step_count(), step);
  }
}

TEST(OptimizerTest, GroupsKeepTheArenaOfTheModel) {
  std::vector<Parameter> parameters;
  for (int i = 0; i < 5; ++i) {
    parameters.push_back(MakeParameter("p" + std::to_string(i), {1, 2, 3}, {3}, i % 2 == 0));
  }
  const auto arena = ParameterArena::FindOrCreate(parameters);
  const void* storage = arena->values().raw_data();
  SGD optimizer(DecayGroups(parameters, 0.5), {.lr = 1});
  EXPECT_EQ(optimizer.arena().values().raw_data(), storage);
  optimizer.Step();  // without gradients only the decay changes values
  for (const Parameter& p : parameters) {
    EXPECT_EQ(p.tensor.data<float>()[1], p.decays ? 1 : 2) << p.name;
  }
}

TEST(OptimizerTest, StepsAndNormsDoNotDependOnThreads) {
  const int64_t n = 200'003;
  std::vector<float> values(n), grads(n);
  for (int64_t i = 0; i < n; ++i) {
    values[i] = std::sin(static_cast<float>(i));
    grads[i] = std::cos(static_cast<float>(3 * i)) * 1e-3f;
  }
  const int threads = omp_get_max_threads();
  std::vector<std::vector<float>> results;
  std::vector<float> norms;
  for (int count : {1, 2, 3, 7}) {
    omp_set_num_threads(count);
    const Parameter p = MakeParameter("p", values, {n});
    AdamW optimizer({p}, {.lr = 0.1});
    optimizer.arena().grads();
    SetGrad(p, grads);
    norms.push_back(ClipGradNorm(optimizer, 0.01).data<float>()[0]);
    optimizer.Step();
    results.push_back(p.tensor.ToVector<float>());
  }
  omp_set_num_threads(threads);
  double square = 0;
  for (float g : grads) {
    square += static_cast<double>(g) * g;
  }
  EXPECT_FLOAT_EQ(norms[0], static_cast<float>(std::sqrt(square)));
  for (size_t i = 1; i < results.size(); ++i) {
    EXPECT_EQ(norms[i], norms[0]);
    EXPECT_EQ(results[i], results[0]);
  }
}

TEST(OptimizerTest, GapsOfTheArenaStayZero) {
  const Parameter a = MakeParameter("a", {1, 2, 3}, {3});
  const Parameter b = MakeParameter("b", {4}, {1});
  AdamW optimizer({a, b}, {.lr = 0.1});
  optimizer.arena().grads();
  SetGrad(a, {1, 1, 1});
  SetGrad(b, {1});
  optimizer.Step();
  const std::vector<float> values = optimizer.arena().values().ToVector<float>();
  int zeros = 0;
  for (float v : values) {
    zeros += v == 0;
  }
  EXPECT_EQ(zeros, static_cast<int>(values.size()) - 4);
}

TEST(ClipTest, SmallGradientsAreLeftAlone) {
  const Parameter p = MakeParameter("p", {0, 0}, {2});
  SGD optimizer({p}, {});
  optimizer.arena().grads();
  SetGrad(p, {3, 4});
  EXPECT_EQ(ClipGradNorm(optimizer, 6).Item(), 5);
  EXPECT_EQ(p.tensor.grad().ToVector<float>(), (std::vector<float>{3, 4}));
  ClipGradNorm(optimizer, 0);
  EXPECT_EQ(p.tensor.grad().ToVector<float>(), (std::vector<float>{0, 0}));
  EXPECT_THROW(ClipGradNorm(optimizer, -1), Error);
}

TEST(ClipTest, NormThatIsNotFiniteLeavesNaN) {
  const Parameter p = MakeParameter("p", {0, 0}, {2});
  SGD optimizer({p}, {});
  optimizer.arena().grads();
  SetGrad(p, {std::numeric_limits<float>::quiet_NaN(), 4});
  EXPECT_TRUE(std::isnan(ClipGradNorm(optimizer, 1).Item()));
  EXPECT_TRUE(std::isnan(p.tensor.grad().data<float>()[1]));
  optimizer.ZeroGrad();
  SetGrad(p, {std::numeric_limits<float>::infinity(), 4});
  EXPECT_TRUE(std::isinf(ClipGradNorm(optimizer, 1).Item()));
  EXPECT_TRUE(std::isnan(p.tensor.grad().data<float>()[0]));
  EXPECT_EQ(p.tensor.grad().data<float>()[1], 0);
}

TEST(ClipTest, Value) {
  const Parameter p = MakeParameter("p", {0, 0, 0, 0}, {4});
  SGD optimizer({p}, {});
  optimizer.arena().grads();
  SetGrad(p, {-3, 0.25f, 4, std::numeric_limits<float>::quiet_NaN()});
  ClipGradValue(optimizer, 0.5);
  const std::vector<float> g = p.tensor.grad().ToVector<float>();
  EXPECT_EQ(g[0], -0.5f);
  EXPECT_EQ(g[1], 0.25f);
  EXPECT_EQ(g[2], 0.5f);
  EXPECT_TRUE(std::isnan(g[3]));
}

TEST(OptimizerTest, RejectsWrongOptions) {
  const Parameter p = MakeParameter("p", {0}, {1});
  EXPECT_THROW(AdamW({p}, {.lr = -1}), Error);
  EXPECT_THROW(AdamW({p}, {.beta1 = 1}), Error);
  EXPECT_THROW(AdamW({p}, {.beta2 = -0.1}), Error);
  EXPECT_THROW(AdamW({p}, {.eps = -1}), Error);
  EXPECT_THROW(AdamW({p}, {.weight_decay = -1}), Error);
  EXPECT_THROW(AdamW(std::vector<Parameter>{p, p}, {}), Error);
  EXPECT_THROW(AdamW(std::vector<Parameter>{}, {}), Error);
  EXPECT_THROW(SGD({p}, {.nesterov = true}), Error);
  EXPECT_THROW(SGD({p}, {.momentum = -1}), Error);
}

template <typename MakeOptimizer>
void ExpectFrozenStays(const MakeOptimizer& make) {
  nn::Linear layer(3, 2, Init::Normal(0.5));
  layer.Initialize(1);
  auto optimizer = make(layer.Parameters());
  const Tensor x = Tensor::FromVector<float>({1, 2, 3}, {1, 3});
  layer.weight.SetRequiresGrad(false);
  const auto weight = layer.weight.ToVector<float>(), bias = layer.bias.template ToVector<float>();
  for (int step = 0; step < 3; ++step) {
    optimizer->ZeroGrad();
    Backward(Sum(layer.Forward(x)));
    optimizer->Step();
  }
  EXPECT_EQ(layer.weight.ToVector<float>(), weight);
  EXPECT_NE(layer.bias.template ToVector<float>(), bias);
  // The step after a thaw counts as the parameter's first: AdamW moves it by the whole rate.
  layer.weight.SetRequiresGrad(true);
  optimizer->ZeroGrad();
  Backward(Sum(layer.Forward(x)));
  optimizer->Step();
  EXPECT_NEAR(weight[0] * (1 - 0.1 * 0.1) - layer.weight.template data<float>()[0], 0.1, 1e-6);
}

TEST(Optimizer, RejectsWrongGroupsAndNaN) {
  const Parameter p = MakeParameter("p", {1, 2}, {2}), q = MakeParameter("q", {1}, {1});
  const auto message = [](const std::function<void()>& f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      return e.message();
    }
    return "no error";
  };
  SGD optimizer({p}, {.lr = 0.1});
  for (const int group : {-1, 1, 100'000'000}) {
    const std::string error =
        "[optimizer] group " + std::to_string(group) + " does not exist; the number of groups is 1";
    EXPECT_EQ(message([&] { optimizer.SetLr(group, 0.5); }), error);
    EXPECT_EQ(message([&] { optimizer.lr(group); }), error);
    EXPECT_EQ(message([&] { optimizer.initial_lr(group); }), error);
    EXPECT_EQ(message([&] { optimizer.used_lr(group); }), error);
  }
  EXPECT_EQ(message([&] { optimizer.SetLr(0, NAN); }),
            "[optimizer] lr must be finite and at least 0 but is nan");
  EXPECT_EQ(message([&] { optimizer.SetLr(0, -1); }),
            "[optimizer] lr must be finite and at least 0 but is -1");
  EXPECT_EQ(message([&] { optimizer.SetLr(0, INFINITY); }),
            "[optimizer] lr must be finite and at least 0 but is inf");
  EXPECT_EQ(message([&] { SGD({p}, {.lr = INFINITY}); }),
            "[optimizer] lr must be finite and at least 0 but is inf");
  EXPECT_EQ(message([&] { SGD({p}, {.weight_decay = INFINITY}); }),
            "[optimizer] weight_decay must be finite and at least 0 but is inf");
  EXPECT_EQ(optimizer.lr(), 0.1);
  const auto groups = [&](double lr, double weight_decay) {
    return std::vector<ParameterGroup>{{.parameters = {p}},
                                       {.parameters = {q}, .lr = lr, .weight_decay = weight_decay}};
  };
  EXPECT_EQ(message([&] { SGD(groups(NAN, 0), {.lr = 0.1}); }),
            "[optimizer] lr of group 1 must be finite but is nan");
  EXPECT_EQ(message([&] { SGD(groups(1, NAN), {.lr = 0.1}); }),
            "[optimizer] weight_decay of group 1 must be finite but is nan");
  EXPECT_EQ(message([&] { SGD({p}, {.momentum = 0.9, .dampening = NAN}); }),
            "[SGD] dampening must be finite but is nan");
}

TEST(Optimizer, FrozenParametersStay) {
  ExpectFrozenStays([](std::vector<Parameter> parameters) {
    return std::make_unique<AdamW>(std::move(parameters),
                                   AdamWOptions{.lr = 0.1, .weight_decay = 0.1});
  });
  ExpectFrozenStays([](std::vector<Parameter> parameters) {
    return std::make_unique<SGD>(std::move(parameters), SGDOptions{.lr = 0.1, .weight_decay = 0.1});
  });
}

// A parameter's first gradient enters its momentum whole, even if it comes later than those of
// others.
TEST(SGD, DampeningSparesTheFirstGradientOfAThawedParameter) {
  nn::Linear layer(1, 1, Init::Zeros());
  layer.Initialize(1);
  SGD sgd(layer.Parameters(), {.lr = 1, .momentum = 0.9, .dampening = 0.5});
  const Tensor x = Tensor::FromVector<float>({2}, {1, 1});
  layer.weight.SetRequiresGrad(false);
  for (const float expected : {0.0f, -2.0f, -2.0f - (0.9f * 2 + 0.5f * 2)}) {
    sgd.ZeroGrad();
    Backward(Sum(layer.Forward(x)));
    sgd.Step();
    layer.weight.SetRequiresGrad(true);
    EXPECT_FLOAT_EQ(layer.weight.data<float>()[0], expected);
  }
}

TEST(Optimizer, GradientsMayBeSwappedButMustFit) {
  const Parameter a = MakeParameter("a", {0, 0}, {2}), b = MakeParameter("b", {0, 0}, {2});
  SGD sgd({a, b}, {.lr = 1});
  SetGrad(a, {1, 2});
  SetGrad(b, {3, 4});
  const Tensor of_a = a.tensor.grad(), of_b = b.tensor.grad();
  Tensor(a.tensor).SetGrad(of_b);
  Tensor(b.tensor).SetGrad(of_a);
  sgd.Step();
  EXPECT_EQ(a.tensor.ToVector<float>(), (std::vector<float>{-3, -4}));
  EXPECT_EQ(b.tensor.ToVector<float>(), (std::vector<float>{-1, -2}));
  Tensor(a.tensor).SetGrad(Tensor::Zeros({3}));
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      sgd.Step();
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.message(), "[arena] the gradient of parameter a must have shape [2] but has [3]");
    }
  }
}

TEST(Optimizer, ParametersThatMovedAwayAreAnError) {
  nn::Linear layer(3, 2, Init::Normal(0.5));
  layer.Initialize(1);
  SGD all(layer.Parameters(), {.lr = 0.1});
  SGD part({layer.Parameters()[1]}, {.lr = 0.1});  // takes the bias with it
  part.Step();
  for (const auto& use : std::vector<std::function<void()>>{
           [&] { all.Step(); }, [&] { all.ZeroGrad(); }, [&] { GradNorm(all); }}) {
    try {
      use();
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.message(),
                "[arena] the values of parameter bias have moved to another arena since the "
                "optimizer was created");
    }
  }
}

TEST(Optimizer, ParametersNeedValues) {
  nn::Linear layer(3, 2, Init::Normal(0.5));
  EXPECT_THROW(SGD(layer.Parameters(), {}), Error);
}

TEST(Optimizer, GradientsThatAreSetOrTakenAwayCount) {
  nn::Linear layer(1, 1, Init::Zeros());
  layer.Initialize(1);
  SGD sgd(layer.Parameters(), {.lr = 1});
  const Tensor x = Tensor::FromVector<float>({2}, {1, 1});
  layer.weight.SetGrad(Tensor::Full({1, 1}, 3));
  sgd.Step();
  EXPECT_EQ(layer.weight.Item(), -3);
  for (int round = 0; round < 2; ++round) {  // round 1: SetGrad({}) first
    sgd.ZeroGrad();
    if (round == 1) layer.weight.SetGrad({});
    Backward(Sum(layer.Forward(x)));
    if (round == 0) layer.weight.SetGrad({});
    ClipGradNorm(sgd, 100);
    sgd.Step();
    EXPECT_EQ(layer.weight.Item(), round == 0 ? -3 : -5);
    EXPECT_EQ(layer.bias.Item(), -1 - round);
  }
}

}  // namespace
}  // namespace lathe
