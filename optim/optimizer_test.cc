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
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/embedding.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/nn/layers.h"

namespace lathe {
namespace {

using nlohmann::json;

Parameter MakeParameter(const std::string& name, std::vector<float> values, Shape shape,
                        bool decays = true) {
  return {.name = name,
          .tensor = Tensor::FromVector<float>(values, std::move(shape)).SetRequiresGrad(true),
          .init = {},
          .decays = decays};
}

void SetGrad(const Parameter& parameter, const std::vector<float>& values) {
  const Tensor grad = Tensor(parameter.tensor).MaterializeGrad();
  std::copy(values.begin(), values.end(), grad.data<float>());
}

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
  const json golden = json::parse(ReadFile("optim/testdata/optim_golden.json"));
  for (const json& c : golden["optimizers"]) {
    SCOPED_TRACE(c["optimizer"].get<std::string>() + " " + c["options"].dump());
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

// Threads share out parameters of all sizes together. Each is updated as if it were alone.
TEST(AdamW, ManyParametersAreAsEachAlone) {
  const std::vector<int64_t> sizes = {5, 40'000, 1, 33'000, 16'384, 16'385, 700};
  const auto values = [](size_t which, int64_t n, float step) {
    std::vector<float> v;
    for (int64_t i = 0; i < n; ++i)
      v.push_back(std::sin(step * static_cast<float>(i) + static_cast<float>(which)));
    return v;
  };
  const auto two_steps = [&](const std::vector<size_t>& which) {
    std::vector<Parameter> parameters;
    for (const size_t i : which)
      parameters.push_back(
          MakeParameter("p" + std::to_string(i), values(i, sizes[i], 1), {sizes[i]}));
    AdamW optimizer(parameters, {.lr = 0.1});
    for (const float step : {0.3f, 0.7f}) {
      optimizer.arena().grads();
      for (size_t i = 0; i < which.size(); ++i)
        SetGrad(parameters[i], values(which[i], sizes[which[i]], step));
      optimizer.Step();
    }
    std::vector<std::vector<float>> results;
    for (const Parameter& p : parameters) results.push_back(p.tensor.ToVector<float>());
    return results;
  };
  std::vector<std::vector<float>> alone;
  std::vector<size_t> all;
  for (size_t i = 0; i < sizes.size(); ++i) {
    alone.push_back(two_steps({i})[0]);
    all.push_back(i);
  }
  const int threads = omp_get_max_threads();
  for (const int count : {1, 2, 3, 7}) {
    omp_set_num_threads(count);
    EXPECT_EQ(two_steps(all), alone) << count << " threads";
  }
  omp_set_num_threads(threads);
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

// A step writes a parameter's bfloat16 copy together with its values, so that it needs no
// conversion.
TEST(AdamW, WritesTheLowPrecisionCopy) {
  const Parameter with = MakeParameter("with", {1, -2, 3.3f}, {3});
  const Parameter without = MakeParameter("without", {5, 6}, {2});
  const Parameter frozen = MakeParameter("frozen", {7, 8}, {2});
  AdamW optimizer({with, without, frozen}, {.lr = 0.1});
  Tensor(frozen.tensor).SetRequiresGrad(false);
  const Tensor copy = LowPrecisionCopy(with.tensor, DType::kBF16);
  LowPrecisionCopy(frozen.tensor, DType::kBF16);
  optimizer.arena().grads();
  SetGrad(with, {1, 2, -3});
  optimizer.Step();
  const std::vector<float> rounded = with.tensor.To(DType::kBF16).To(DType::kF32).ToVector<float>();
  EXPECT_EQ(copy.To(DType::kF32).ToVector<float>(), rounded);
  EXPECT_NE(rounded[0], 1);
  EXPECT_EQ(with.tensor.impl()->low_precision_version, with.tensor.impl()->storage->version());
  EXPECT_EQ(frozen.tensor.impl()->low_precision_version, frozen.tensor.impl()->storage->version());
  // A copy that is made after the step is right, too.
  EXPECT_EQ(LowPrecisionCopy(without.tensor, DType::kBF16).To(DType::kF32).ToVector<float>(),
            without.tensor.To(DType::kBF16).To(DType::kF32).ToVector<float>());
}

// AdamW passes over parts of a parameter that never had a gradient. The result is still that of the
// plain rule, whenever a part gets its first gradient, even if decay starts later.
TEST(AdamW, PassesOverWhatNeverHadAGradient) {
  constexpr int64_t kSize = 1000;  // several blocks, the last one not whole
  std::vector<float> start(kSize);
  for (int64_t i = 0; i < kSize; ++i) start[i] = std::sin(static_cast<float>(i));
  const Parameter p = MakeParameter("p", start, {kSize});
  const double decay = 0.1, eps = 1e-8;
  AdamW optimizer({p}, {.lr = 0, .weight_decay = decay});
  std::vector<double> values(start.begin(), start.end()), m(kSize), v(kSize);
  for (int step = 1; step <= 6; ++step) {
    const double lr = step <= 3 ? 0 : 0.01;  // nothing decays at rate 0
    optimizer.SetLr(0, lr);
    optimizer.arena().grads();
    std::vector<float> g(kSize);
    if (step != 2) g[step * 150] = 0.5f;
    SetGrad(p, g);
    optimizer.Step();
    for (int64_t i = 0; i < kSize; ++i) {
      m[i] = 0.9 * m[i] + 0.1 * g[i];
      v[i] = 0.999 * v[i] + 0.001 * g[i] * g[i];
      values[i] -= lr * decay * values[i];
      values[i] -= lr / (1 - std::pow(0.9, step)) * m[i] /
                   (std::sqrt(v[i] / (1 - std::pow(0.999, step))) + eps);
    }
  }
  for (int64_t i = 0; i < kSize; ++i) EXPECT_NEAR(p.tensor.data<float>()[i], values[i], 1e-6) << i;
}

// The norm, clipping and AdamW pass over rows that are known to have no gradient. Without this
// knowledge the same steps give the same result.
TEST(AdamW, KnownRowsChangeNothing) {
  const auto train = [](bool known) {
    nn::Embedding table(200, 24, 0.02);  // rows don't end where blocks do
    table.Initialize(7);
    AdamW optimizer(table.Parameters(), {.lr = 0.01, .weight_decay = 0});
    std::vector<float> norms;
    for (int32_t step = 0; step < 6; ++step) {
      optimizer.ZeroGrad();
      const Tensor ids = Tensor::FromVector<int32_t>({step * 31, 5, 199, step * 31});
      const Tensor y = EmbeddingSum({ids}, {table.weight});
      Backward(Sum(Mul(y, y)));
      if (!known) table.weight.MaterializeGrad();
      EXPECT_EQ(table.weight.impl()->gradient().rows.has_value(), known);
      norms.push_back(ClipGradNorm(optimizer, 0.01).data<float>()[0]);
      optimizer.Step();
    }
    auto end = table.weight.ToVector<float>();
    end.insert(end.end(), norms.begin(), norms.end());
    return end;
  };
  const std::vector<float> plain = train(false), with_rows = train(true);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_FLOAT_EQ(plain[i], with_rows[i]) << i;
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
