#include "lathe/nn/module.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <type_traits>

#include "lathe/core/ops/operators/operators.h"
#include "lathe/nn/callable_module.h"
#include "lathe/nn/conv1d.h"
#include "lathe/nn/layers.h"
#include "lathe/nn/network_testing.h"

namespace lathe {
namespace {

using Floats = std::vector<float>;

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

}  // namespace
}  // namespace lathe
