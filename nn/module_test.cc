#include "lathe/nn/module.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <set>
#include <string>
#include <type_traits>

#include "lathe/core/autograd.h"
#include "lathe/core/base/philox.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/embedding.h"
#include "lathe/core/ops/operators/operators.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/nn/arena.h"
#include "lathe/nn/callable_module.h"
#include "lathe/nn/conv1d.h"
#include "lathe/nn/layers.h"

namespace lathe {
namespace {

using Floats = std::vector<float>;

class Dense : public Module {
 public:
  Dense(int64_t in, int64_t out)
      : weight(RegisterParameter("weight", {out, in}, Init::Normal(0.02))),
        bias(RegisterParameter("bias", {out}, Init::Zeros(), /*decays=*/false)) {}
  Tensor weight, bias;
};

class Network : public Module {
 public:
  Network() : first(Register<Dense>("first", 3, 5)), second(Register<Dense>("second", 5, 2)) {}
  std::shared_ptr<Dense> first, second;
};

// The same parameters, registered in the opposite order.
class Reversed : public Module {
 public:
  Reversed() : second(Register<Dense>("second", 5, 2)), first(Register<Dense>("first", 3, 5)) {}
  std::shared_ptr<Dense> second, first;
};

TEST(Module, PathsInOrderOfRegistration) {
  const Network network;
  std::vector<std::string> names;
  for (const Parameter& p : network.Parameters()) names.push_back(p.name);
  EXPECT_EQ(names, (std::vector<std::string>{"first.weight", "first.bias", "second.weight",
                                             "second.bias"}));
  EXPECT_EQ(network.NumParameters(), 15 + 5 + 10 + 2);
  EXPECT_TRUE(network.Parameters()[0].decays);
  EXPECT_FALSE(network.Parameters()[1].decays);
  EXPECT_FALSE(network.first->weight.allocated());
  EXPECT_TRUE(network.first->weight.requires_grad());
}

// Parts of one name would have one path in a checkpoint.
TEST(Module, ANameIsTakenOnce) {
  class Twice : public Module {
   public:
    explicit Twice(bool parts) {
      if (parts)
        Register<Dense>("a", 3, 5);
      else
        RegisterParameter("a", {2}, Init::Zeros());
      Register<Dense>("a", 3, 5);
    }
  };
  for (const bool parts : {false, true}) {
    try {
      Twice{parts};
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& e) {
      EXPECT_EQ(e.message(),
                "[module] \"a\" is registered already; each part needs a name of its own");
    }
  }
}

TEST(Module, TrainReachesTheWholeTree) {
  Network network;
  EXPECT_FALSE(network.training());
  network.Train();
  EXPECT_TRUE(network.first->training());
  network.Eval();
  EXPECT_FALSE(network.second->training());
}

TEST(Module, ModesAreThoseOfTheWholeTree) {
  Network network;
  const std::string before = network.Modes();
  EXPECT_EQ(before.size(), 3u);
  const std::function<void(Module&, bool)> modes[] = {
      [](Module& m, bool on) { m.Train(on); },
      [](Module& m, bool on) { m.SetGradientCheckpointing(on); },
      [](Module& m, bool on) { m.SetComputeDType(on ? DType::kF16 : DType::kF32); },
      [](Module& m, bool on) { m.SetComputeDType(on ? DType::kBF16 : DType::kF32); },
  };
  std::set<std::string> seen = {before};
  for (const auto& set : modes) {
    for (Module* module : {static_cast<Module*>(&network), static_cast<Module*>(&*network.first),
                           static_cast<Module*>(&*network.second)}) {
      set(*module, true);
      EXPECT_TRUE(seen.insert(network.Modes()).second);
      set(*module, false);
      EXPECT_EQ(network.Modes(), before);
    }
  }
}

TEST(Module, InitializeIsAFunctionOfSeedAndPath) {
  Network a, b, other_seed;
  Reversed reversed;
  a.Initialize(7);
  b.Initialize(7);
  b.Initialize(7);
  other_seed.Initialize(8);
  reversed.Initialize(7);
  const Floats values = a.first->weight.ToVector<float>();
  EXPECT_EQ(values, b.first->weight.ToVector<float>());
  EXPECT_EQ(values, reversed.first->weight.ToVector<float>());
  EXPECT_NE(values, other_seed.first->weight.ToVector<float>());
  Floats second = a.second->weight.ToVector<float>();
  EXPECT_FALSE(std::equal(second.begin(), second.end(), values.begin()));
  EXPECT_EQ(a.first->bias.ToVector<float>(), Floats(5, 0));
}

TEST(Arena, ParametersAreViewsInReverseOrder) {
  Network network;
  const std::vector<Parameter> parameters = network.Parameters();
  const auto arena = ParameterArena::FindOrCreate(parameters);
  ASSERT_EQ(arena->entries().size(), 4u);
  EXPECT_EQ(arena->entries()[0].parameter.name, "second.bias");
  EXPECT_EQ(arena->entries()[3].parameter.name, "first.weight");
  EXPECT_EQ(arena->values().numel(), 4 * 16);  // each padded to a cache line
  for (const ParameterArena::Entry& entry : arena->entries()) {
    EXPECT_EQ(entry.offset % 16, 0);
    EXPECT_EQ(entry.parameter.tensor.raw_data(), arena->values().data<float>() + entry.offset);
  }
  Tensor(network.first->weight).Fill(3);
  EXPECT_EQ(arena->values().data<float>()[arena->entries()[3].offset + 14], 3);
  EXPECT_EQ(arena->values().data<float>()[arena->entries()[3].offset + 15], 0);  // the gap
}

TEST(Arena, KeepsValuesAndGradientsOfAllocatedParameters) {
  Network network;
  network.Initialize(7);
  const Floats before = network.second->weight.ToVector<float>();
  const auto part = ParameterArena::FindOrCreate(network.second->Parameters());
  EXPECT_EQ(network.second->weight.ToVector<float>(), before);
  network.second->bias.SetGrad(Tensor::Full({2}, 4));
  EXPECT_EQ(part->grads().data<float>()[part->entries()[0].offset], 4);
  part->ZeroGrads();
  EXPECT_FALSE(network.second->bias.grad().defined());
  EXPECT_EQ(network.second->bias.MaterializeGrad().ToVector<float>(), (Floats{0, 0}));
}

// Zeroing only marks gradients as stale. Code that needs them or adds to them finds zeros all the
// same.
TEST(Arena, ZeroedGradientsAreZeroForEverybody) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  const auto pass = [&](nn::Linear& layer) { Backward(Sum(layer.Forward(x))); };
  nn::Linear layer(3, 2, Init::Normal(0.02));
  layer.Initialize(7);
  const auto arena = ParameterArena::FindOrCreate(layer.Parameters());
  arena->grads();
  const Floats once = {5, 7, 9, 5, 7, 9}, twice = {10, 14, 18, 10, 14, 18};
  pass(layer);
  EXPECT_EQ(layer.weight.grad().ToVector<float>(), once);
  pass(layer);
  EXPECT_EQ(layer.weight.grad().ToVector<float>(), twice);
  arena->ZeroGrads();
  pass(layer);  // overwrites
  EXPECT_EQ(layer.weight.grad().ToVector<float>(), once);
  EXPECT_EQ(layer.bias.grad().ToVector<float>(), (Floats{2, 2}));
  arena->ZeroGrads();
  EXPECT_EQ(layer.weight.MaterializeGrad().ToVector<float>(), Floats(6, 0));
  arena->ZeroGrads();
  for (const float g : arena->grads().ToVector<float>()) EXPECT_EQ(g, 0);
  arena->ZeroGrads();
  Backward(Sum(Mul(layer.bias, layer.bias)));  // an op that doesn't know stale buffers
  EXPECT_EQ(layer.bias.grad().data<float>()[0], 2 * layer.bias.data<float>()[0]);
}

TEST(Arena, RowsWithoutGradientAreKnown) {
  nn::Embedding table(10, 2, 0.02);
  table.Initialize(7);
  const auto arena = ParameterArena::FindOrCreate(table.Parameters());
  const auto rows = [&] { return table.weight.impl()->gradient().rows; };
  const auto pass = [&](const std::vector<int32_t>& ids) {
    Backward(Sum(EmbeddingSum({Tensor::FromVector(ids)}, {table.weight})));
  };
  const auto grad_of = [&] { return table.weight.grad().ToVector<float>(); };
  arena->GradsToRead();
  EXPECT_EQ(rows(), std::vector<int32_t>{});
  pass({1, 4});
  EXPECT_EQ(rows(), (std::vector<int32_t>{1, 4}));
  arena->grads();  // the caller may write anywhere
  EXPECT_EQ(rows(), std::nullopt);
  pass({1, 4});
  EXPECT_EQ(rows(), std::nullopt);
  arena->ZeroGrads();
  pass({7, 4, 7});
  EXPECT_EQ(rows(), (std::vector<int32_t>{4, 7}));
  Floats expected(20, 0);
  expected[8] = expected[9] = 1;
  expected[14] = expected[15] = 2;
  EXPECT_EQ(grad_of(), expected);
  pass({0});
  EXPECT_EQ(rows(), (std::vector<int32_t>{0, 4, 7}));
  arena->ZeroGrads();
  arena->GradsToRead();
  EXPECT_EQ(rows(), std::vector<int32_t>{});
  EXPECT_EQ(grad_of(), Floats(20, 0));
  pass({3});
  arena->ZeroGrads();
  pass({9});
  EXPECT_EQ(rows(), std::vector<int32_t>{9});
  EXPECT_EQ(table.weight.grad().data<float>()[18], 1);
  EXPECT_EQ(rows(), std::vector<int32_t>{9});  // reading changes nothing
  EXPECT_EQ(table.weight.MaterializeGrad().data<float>()[18], 1);
  EXPECT_EQ(rows(), std::nullopt);  // the caller may write anywhere
  pass({9});
  EXPECT_EQ(table.weight.grad().data<float>()[18], 2);
}

TEST(Arena, TwiceSharesTheBuffers) {
  Network network;
  network.Initialize(7);
  const auto a = ParameterArena::FindOrCreate(network.Parameters());
  a->grads();
  const auto b = ParameterArena::FindOrCreate(network.Parameters());
  EXPECT_EQ(a->values().raw_data(), b->values().raw_data());
  EXPECT_EQ(a->grads().raw_data(), b->grads().raw_data());
  EXPECT_EQ(network.first->bias.grad().raw_data(),
            a->grads().data<float>() + a->entries()[2].offset);
  EXPECT_NE(ParameterArena::FindOrCreate(network.first->Parameters())->values().raw_data(),
            a->values().raw_data());
}

TEST(Arena, Errors) {
  EXPECT_THROW(ParameterArena::FindOrCreate({}), Error);
  const Parameter parameter{"x", Tensor::Zeros({2}, DType::kF64), Init::Zeros()};
  EXPECT_THROW(ParameterArena::FindOrCreate({parameter}), Error);
}

struct Moments {
  double mean, std_dev, min, max;
};

Moments MomentsOf(const Init& init, int64_t n = 200000) {
  Tensor t = Tensor::Empty({n}, DType::kF64);
  Fill(t, init, 42, "moments");
  Moments m{0, 0, 1e9, -1e9};
  for (double v : t.values<double>()) {
    m.mean += v / static_cast<double>(n);
    m.min = std::min(m.min, v);
    m.max = std::max(m.max, v);
  }
  for (double v : t.values<double>()) m.std_dev += (v - m.mean) * (v - m.mean);
  m.std_dev = std::sqrt(m.std_dev / static_cast<double>(n));
  return m;
}

// Bounds are four standard errors or more.
TEST(Init, Statistics) {
  const Moments normal = MomentsOf(Init::Normal(0.02));
  EXPECT_NEAR(normal.mean, 0, 0.0002);
  EXPECT_NEAR(normal.std_dev, 0.02, 0.00015);
  EXPECT_GT(normal.max, 0.02 * 3.9);
  EXPECT_LT(normal.min, -0.02 * 3.9);
  const Moments truncated = MomentsOf(Init::TruncatedNormal(0.02, 2));
  EXPECT_NEAR(truncated.mean, 0, 0.0002);
  EXPECT_NEAR(truncated.std_dev, 0.02 * 0.87963, 0.00015);  // of a normal distribution cut at two
  EXPECT_LE(truncated.max, 0.04);
  EXPECT_GE(truncated.min, -0.04);
  const Moments uniform = MomentsOf(Init::Uniform(-1, 3));
  EXPECT_NEAR(uniform.mean, 1, 0.011);
  EXPECT_NEAR(uniform.std_dev, 4 / std::sqrt(12.0), 0.01);
  EXPECT_GE(uniform.min, -1);
  EXPECT_LE(uniform.max, 3);
}

TEST(Init, ConstantsAndPaddingRow) {
  Tensor t = Tensor::Empty({3, 2});
  Fill(t, Init::Ones(), 1, "t");
  EXPECT_EQ(t.ToVector<float>(), Floats(6, 1));
  Fill(t, Init::Normal(1, /*zero_row=*/1), 1, "t");
  const Floats values = t.ToVector<float>();
  EXPECT_EQ(values[2], 0);
  EXPECT_EQ(values[3], 0);
  EXPECT_NE(values[0], 0);
  EXPECT_NE(values[5], 0);
}

// Normal values agree with the Box-Muller formula as the C library computes it.
TEST(Init, NormalValuesAreThoseOfTheFormula) {
  constexpr int64_t kValues = 100003;
  Tensor t = Tensor::Empty({kValues}, DType::kF64);
  Fill(t, Init::Normal(1), 77, "formula");
  const uint64_t key = 77 ^ HashName("formula");
  const auto unit = [](uint32_t bits) { return (bits + 0.5) * 0x1p-32; };
  double most = 0;
  for (int64_t i = 0; i < kValues; ++i) {
    const PhiloxBlock block =
        Philox4x32({{static_cast<uint32_t>(i / 4), 0, 0, 0}}, static_cast<uint32_t>(key),
                   static_cast<uint32_t>(key >> 32));
    const int pair = i % 4 / 2 * 2;
    const double radius = std::sqrt(-2 * std::log(unit(block.v[pair])));
    const double angle = 2 * std::numbers::pi * unit(block.v[pair + 1]);
    const double expected = radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
    most = std::max(most, std::fabs(t.data<double>()[i] - expected));
  }
  EXPECT_LT(most, 1e-14);
}

// The first elements do not depend on how many follow.
TEST(Init, ElementsAreIndependentOfTheSize) {
  Tensor small = Tensor::Empty({5}), large = Tensor::Empty({50000});
  Fill(small, Init::TruncatedNormal(1, 1), 3, "t");
  Fill(large, Init::TruncatedNormal(1, 1), 3, "t");
  EXPECT_EQ(small.ToVector<float>(), large.Slice(0, 5).ToVector<float>());
}

class WithConstant : public Module {
 public:
  WithConstant()
      : table(RegisterConstant("table", {3, 4}, Init::Sinusoids())),
        weight(RegisterParameter("weight", {2}, Init::Ones())) {}
  Tensor table, weight;
};

// A constant has its place among the parameters, but no gradient.
TEST(Module, ConstantsAreNotTrained) {
  WithConstant module;
  module.Initialize(1);
  EXPECT_EQ(module.NumParameters(), 14);
  const std::vector<Parameter> parameters = module.Parameters();
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_FALSE(parameters[0].tensor.requires_grad());
  EXPECT_FALSE(parameters[0].decays);
  EXPECT_TRUE(parameters[1].tensor.requires_grad());
  const std::vector<float> table = module.table.ToVector<float>();
  for (int p = 0; p < 3; ++p) {
    EXPECT_FLOAT_EQ(table[p * 4], std::sin(static_cast<float>(p)));
    EXPECT_FLOAT_EQ(table[p * 4 + 1], std::sin(static_cast<float>(p) / 100));
    EXPECT_FLOAT_EQ(table[p * 4 + 2], std::cos(static_cast<float>(p)));
    EXPECT_FLOAT_EQ(table[p * 4 + 3], std::cos(static_cast<float>(p) / 100));
  }
}

class Unnamed : public Module {
 public:
  Unnamed() { dense_ = Register<Dense>("", 2, 3); }

 private:
  std::shared_ptr<Dense> dense_;
};

TEST(Module, AnEmptyNameAddsNothingToPaths) {
  const std::vector<Parameter> parameters = Unnamed().Parameters();
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_EQ(parameters[0].name, "weight");
  EXPECT_EQ(parameters[1].name, "bias");
}

class CallableDense : public CallableModule<CallableDense> {
 public:
  explicit CallableDense(int64_t in)
      : dense_(Register<nn::Linear>("dense", in, 2, Init::Normal(0.5))) {}
  Tensor Forward(const Tensor& x) { return ++calls, (*dense_)(x); }
  Tensor Forward(const Tensor& x, const Tensor& y) const { return (*dense_)(x + y); }
  int calls = 0;

 private:
  std::shared_ptr<nn::Linear> dense_;
};

// A call is Forward, with whatever arguments it has.
TEST(CallableModule, CallsForward) {
  CallableDense module(3);
  module.Initialize(5);
  const Tensor x = Tensor::FromVector<float>({1, 2, 3}, {1, 3});
  const Floats y = module(x).ToVector<float>();
  EXPECT_EQ(module.calls, 1);
  EXPECT_EQ(y, module.Forward(x).ToVector<float>());
  const CallableDense& fixed = module;
  EXPECT_EQ(fixed(x, Tensor::Zeros({1, 3})).ToVector<float>(), y);
  EXPECT_EQ(module(x, Tensor::Zeros({1, 3})).ToVector<float>(), y);
  EXPECT_EQ(module.Parameters().front().name, "dense.weight");

  nn::LayerNorm norm(3, 1e-5);
  norm.Initialize(1);
  EXPECT_EQ(norm(x).ToVector<float>(), norm.Forward(x).ToVector<float>());
  nn::Embedding table(4, 3, 0.5);
  table.Initialize(1);
  const Tensor ids = Tensor::FromVector<int32_t>({2, 0});
  EXPECT_EQ(table(ids).ToVector<float>(), table.Forward(ids).ToVector<float>());
  nn::Dropout dropout(0.5, "place");
  EXPECT_EQ(dropout(x, nn::ForwardContext()).ToVector<float>(), x.ToVector<float>());
}

static_assert(std::is_invocable_r_v<Tensor, const nn::Linear&, Tensor>);
static_assert(std::is_invocable_r_v<Tensor, const nn::GroupedLinear&, Tensor>);
static_assert(std::is_invocable_r_v<Tensor, const nn::RmsNorm&, Tensor>);
static_assert(std::is_invocable_r_v<Tensor, const nn::Conv1d&, Tensor>);
static_assert(!std::is_invocable_v<const nn::Linear&, Tensor, int>);
static_assert(!std::is_invocable_v<const CallableDense&, Tensor>);  // that Forward is not const

// The last of an odd number of columns has a sine without its cosine.
TEST(Init, SinusoidPairsOfAnOddNumberOfColumns) {
  Tensor table = Tensor::Zeros({2, 3});
  Fill(table, Init::SinusoidPairs(), 1, "table");
  const std::vector<float> row = table.Slice(1, 2).ToVector<float>();
  EXPECT_FLOAT_EQ(row[0], static_cast<float>(std::sin(1.0)));
  EXPECT_FLOAT_EQ(row[1], static_cast<float>(std::cos(1.0)));
  EXPECT_FLOAT_EQ(row[2], static_cast<float>(std::sin(std::pow(10000.0, -2.0 / 3))));
}

TEST(Init, SinusoidsNeedPairsOfColumns) {
  Tensor odd = Tensor::Empty({2, 3});
  EXPECT_THROW(Fill(odd, Init::Sinusoids(), 1, "odd"), Error);
}

}  // namespace
}  // namespace lathe
