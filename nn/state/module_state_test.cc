#include "lathe/nn/state/module_state.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "lathe/core/base/file.h"
#include "lathe/core/safetensors/safetensors.h"
#include "lathe/nn/layers.h"

namespace lathe {
namespace {

struct Net : Module {
  explicit Net(int64_t out = 2) {
    dense = Register<nn::Linear>("dense", 3, out, Init::Normal(1));
    norm = Register<nn::LayerNorm>("norm", out, 1e-5);
    count = RegisterConstant("count", {1}, Init::Ones());
  }
  std::shared_ptr<nn::Linear> dense;
  std::shared_ptr<nn::LayerNorm> norm;
  Tensor count;
};

std::string MessageOf(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.message();
  }
  return "no error";
}

std::string File(const std::string& name) {
  return (std::filesystem::path(testing::TempDir()) / name).string();
}

TEST(ModuleState, HasAllTensorsByPath) {
  Net net;
  EXPECT_EQ(MessageOf([&] { ModuleState(net); }),
            "[module_state] parameter dense.weight has no values yet");
  net.Initialize(1);
  const StateDict state = ModuleState(net);
  std::vector<std::string> names;
  for (const StateTensor& t : state.tensors) names.push_back(t.name);
  EXPECT_EQ(names, (std::vector<std::string>{"dense.weight", "dense.bias", "norm.weight",
                                             "norm.bias", "count"}));
  EXPECT_EQ(state.tensors[0].values.raw_data(), net.dense->weight.raw_data());
}

TEST(ModuleState, ARoundTripKeepsTheBits) {
  Net net;
  net.Initialize(1);
  net.count.Fill(7);
  SaveModule(net, File("net.safetensors"));
  Net again;  // without values so far
  const ModuleDifferences none = LoadModule(again, File("net.safetensors"));
  EXPECT_TRUE(none.missing.empty() && none.unexpected.empty());
  StateDict copy;
  CopyState(ModuleState(net), copy);
  Net third;
  third.Initialize(9);
  LoadModuleState(third, copy);
  for (size_t i = 0; i < net.Parameters().size(); ++i) {
    const std::vector<float> values = net.Parameters()[i].tensor.ToVector<float>();
    EXPECT_EQ(again.Parameters()[i].tensor.ToVector<float>(), values);
    EXPECT_EQ(third.Parameters()[i].tensor.ToVector<float>(), values);
  }
}

TEST(ModuleState, RefusesWhatDoesNotFitAndChangesNothing) {
  Net net;
  net.Initialize(1);
  const std::string file = File("other.safetensors");
  WriteSafetensors(file, {{"dense.weight", Tensor::Full({2, 3}, 5)},
                          {"dense.bias", Tensor::Full({2}, 5)},
                          {"extra", Tensor::Full({1}, 5)}});
  const std::vector<float> before = net.dense->weight.ToVector<float>();
  EXPECT_EQ(MessageOf([&] { LoadModule(net, file); }),
            "[load_module] " + file +
                " lacks 3 parameters: norm.weight, norm.bias, count; has 1 tensor: extra, which "
                "the module lacks");
  EXPECT_EQ(net.dense->weight.ToVector<float>(), before);
  Net fresh;
  EXPECT_EQ(MessageOf([&] { LoadModule(fresh, file, {.strict = false}); }),
            "[load_module] " + file +
                " lacks 3 parameters: norm.weight, norm.bias, count, without values so far");
  const ModuleDifferences differences = LoadModule(net, file, {.strict = false});
  EXPECT_EQ(differences.missing, (std::vector<std::string>{"norm.weight", "norm.bias", "count"}));
  EXPECT_EQ(differences.unexpected, (std::vector<std::string>{"extra"}));
  EXPECT_EQ(net.dense->weight.ToVector<float>(), std::vector<float>(6, 5));
  EXPECT_EQ(net.norm->weight.ToVector<float>(), std::vector<float>(2, 1));

  Net wide(4);
  wide.Initialize(1);
  SaveModule(wide, file);
  for (const bool strict : {true, false}) {
    EXPECT_EQ(MessageOf([&] { LoadModule(net, file, {.strict = strict}); }),
              "[load_module] " + file +
                  " has 4 tensors of other shapes: dense.weight has [4, 3] but the module [2, 3], "
                  "dense.bias has [4] "
                  "but the module [2], norm.weight has [4] but the module [2], norm.bias has [4] "
                  "but the module [2]");
  }
  EXPECT_EQ(net.dense->weight.ToVector<float>(), std::vector<float>(6, 5));
}

TEST(ModuleState, FilesThatAreMissingOrDamaged) {
  Net net;
  EXPECT_NE(MessageOf([&] { LoadModule(net, File("nowhere.safetensors")); }), "no error");
  WriteFileAtomically(File("broken.safetensors"), "no weights");
  EXPECT_NE(MessageOf([&] { LoadModule(net, File("broken.safetensors")); }), "no error");
}

TEST(ModuleState, OtherDTypesAreConverted) {
  Net net;
  net.Initialize(1);
  const std::string file = File("narrow.safetensors");
  std::vector<std::pair<std::string, Tensor>> narrow;
  for (const Parameter& p : net.Parameters()) {
    narrow.emplace_back(p.name, p.tensor.To(DType::kBF16));
  }
  WriteSafetensors(file, narrow);
  Net again;
  LoadModule(again, file);
  EXPECT_EQ(again.dense->weight.ToVector<float>(),
            net.dense->weight.To(DType::kBF16).To(DType::kF32).ToVector<float>());
}

}  // namespace
}  // namespace lathe
