#include "lathe/models/weights/load_weights.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "lathe/core/safetensors/safetensors.h"
#include "lathe/nn/arena.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

const CheckpointNames kNames = {.base_prefix = "bert."};

class Leaf : public Module {
 public:
  Leaf(Shape weight, int64_t bias) {
    RegisterParameter("weight", std::move(weight), Init::Normal(0.02));
    RegisterParameter("bias", {bias}, Init::Zeros());
  }
};

class Encoder : public Module {
 public:
  Encoder() {
    Register<Leaf>("dense", Shape{2, 2}, 2);
    Register<Leaf>("LayerNorm", Shape{2}, 2);
  }
};

class Model : public Module {
 public:
  explicit Model(int64_t num_labels = 3) {
    Register<Encoder>("bert");
    Register<Leaf>("classifier", Shape{num_labels, 2}, num_labels);
  }
};

class LoadWeightsTest : public testing::Test {
 protected:
  using Tensors = std::vector<std::pair<std::string, Tensor>>;

  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = (fs::path(testing::TempDir()) / (std::string("load_weights_test_") + info->name()))
               .string();
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  void Write(const Tensors& tensors) { WriteSafetensors(dir_ + "/model.safetensors", tensors); }
  static Tensors EncoderTensors(const std::string& prefix, const std::string& norm_weight,
                                const std::string& norm_bias) {
    return {
        {prefix + "dense.weight", Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2})},
        {prefix + "dense.bias", Tensor::FromVector<float>({5, 6}).To(DType::kBF16)},
        {prefix + "LayerNorm." + norm_weight, Tensor::FromVector<float>({7, 8}).To(DType::kF16)},
        {prefix + "LayerNorm." + norm_bias, Tensor::FromVector<float>({9, 10}).To(DType::kF64)}};
  }
  static std::vector<float> ValuesOf(const Module& module, const std::string& name) {
    for (const Parameter& p : module.Parameters()) {
      if (p.name == name) {
        return p.tensor.ToVector<float>();
      }
    }
    ADD_FAILURE() << name;
    return {};
  }
  static void ExpectEncoderLoaded(const Module& model) {
    EXPECT_EQ(ValuesOf(model, "bert.dense.weight"), (std::vector<float>{1, 2, 3, 4}));
    EXPECT_EQ(ValuesOf(model, "bert.dense.bias"), (std::vector<float>{5, 6}));
    EXPECT_EQ(ValuesOf(model, "bert.LayerNorm.weight"), (std::vector<float>{7, 8}));
    EXPECT_EQ(ValuesOf(model, "bert.LayerNorm.bias"), (std::vector<float>{9, 10}));
  }

  std::string dir_;
};

TEST_F(LoadWeightsTest, PretrainingCheckpointWithOldNames) {
  Tensors tensors = EncoderTensors("bert.", "gamma", "beta");
  tensors.emplace_back("bert.embeddings.position_ids", Tensor::FromVector<int64_t>({0, 1}));
  tensors.emplace_back("bert.pooler.dense.bias", Tensor::FromVector<float>({1}));
  tensors.emplace_back("cls.predictions.bias", Tensor::FromVector<float>({1}));
  Write(tensors);
  Model model;
  const LoadReport report = LoadWeights(model, dir_, kNames);
  ExpectEncoderLoaded(model);
  EXPECT_EQ(report.loaded.size(), 4u);
  EXPECT_EQ(report.fresh_head, (Names{"classifier.weight", "classifier.bias"}));
  EXPECT_EQ(report.unused_pretraining, (Names{"bert.pooler.dense.bias", "cls.predictions.bias"}));
  EXPECT_EQ(report.unused_buffers, (Names{"bert.embeddings.position_ids"}));
  EXPECT_EQ(
      report.Summary(),
      "parameters of the new head that get fresh values (2): classifier.weight, classifier.bias\n"
      "tensors of pre-training heads in the checkpoint that are not used (2): "
      "bert.pooler.dense.bias, cls.predictions.bias\n");

  // The fresh head has the values that Initialize draws with the same seed.
  Model fresh;
  fresh.Initialize(42);
  EXPECT_EQ(ValuesOf(model, "classifier.weight"), ValuesOf(fresh, "classifier.weight"));
  EXPECT_NE(ValuesOf(model, "classifier.weight")[0], 0);
}

TEST_F(LoadWeightsTest, BareEncoderGetsThePrefix) {
  Tensors tensors = EncoderTensors("", "weight", "bias");
  tensors.emplace_back("classifier.bias", Tensor::FromVector<float>({1, 2, 3}));
  Write(tensors);
  Model model;
  const LoadReport report = LoadWeights(model, dir_, kNames);
  ExpectEncoderLoaded(model);
  EXPECT_EQ(ValuesOf(model, "classifier.bias"), (std::vector<float>{1, 2, 3}));
  EXPECT_TRUE(report.missing.empty());
  EXPECT_TRUE(report.unexpected.empty());
}

TEST_F(LoadWeightsTest, SurprisesAreReported) {
  Tensors tensors = EncoderTensors("bert.", "weight", "bias");
  tensors[1].first = "bert.dense.byas";
  Write(tensors);
  Model model;
  const LoadReport report = LoadWeights(model, dir_, kNames);
  EXPECT_EQ(report.missing, (Names{"bert.dense.bias"}));
  EXPECT_EQ(report.unexpected, (Names{"bert.dense.byas"}));
  EXPECT_EQ(
      report.Summary(),
      "parameters of the new head that get fresh values (2): classifier.weight, classifier.bias\n"
      "parameters that the checkpoint lacks and that get fresh values (1): bert.dense.bias\n"
      "tensors of the checkpoint that the model does not have (1): bert.dense.byas\n");
  EXPECT_EQ(ValuesOf(model, "bert.dense.bias"), (std::vector<float>{0, 0}));
}

TEST_F(LoadWeightsTest, PointersOfGitLfsAreNamed) {
  const auto refusal = [&]() -> std::string {
    Model model;
    try {
      LoadWeights(model, dir_, kNames);
    } catch (const Error& error) {
      EXPECT_EQ(error.hint(), "get the weights by `git lfs pull`");
      return error.message();
    }
    return "";
  };
  const std::string text =
      "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, '0') +
      "\nsize 437951328\n";
  const std::string message = ": is only a pointer of Git LFS to the weights";
  for (const std::string name :
       {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
        "pytorch_model.bin.index.json", "tf_model.h5", "tf_model.h5.index.json"}) {
    const std::string file = dir_ + "/" + name;
    std::ofstream(file) << text;
    EXPECT_EQ(refusal(), file + message);
    fs::remove(file);
  }
  std::ofstream(dir_ + "/model.safetensors.index.json")
      << R"({"weight_map":{"bert.dense.bias":"a.safetensors"}})";
  std::ofstream(dir_ + "/a.safetensors") << text;
  EXPECT_EQ(refusal(), dir_ + "/a.safetensors" + message);
}

TEST_F(LoadWeightsTest, OtherNumberOfLabels) {
  Model saved(5);
  saved.Initialize(1);
  SaveWeights(saved, dir_);
  Model model(3);
  try {
    LoadWeights(model, dir_, kNames);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), dir_ +
                                   "/model.safetensors: classifier.weight: file has [5, 2], "
                                   "model [3, 2]");
    EXPECT_NE(error.hint().find("ignore_mismatched_sizes"), std::string::npos);
  }
  EXPECT_FALSE(model.Parameters()[0].tensor.allocated());  // untouched by the failed load
  const LoadReport report = LoadWeights(model, dir_, kNames, {.ignore_mismatched_sizes = true});
  EXPECT_EQ(report.mismatched, (Names{"classifier.weight: file has [5, 2], model [3, 2]",
                                      "classifier.bias: file has [5], model [3]"}));
  EXPECT_EQ(ValuesOf(model, "bert.dense.weight"), ValuesOf(saved, "bert.dense.weight"));
}

TEST_F(LoadWeightsTest, SaveAndLoadAgainInOneArena) {
  Model saved;
  saved.Initialize(7);
  SaveWeights(saved, dir_ + "/new/folder");
  Model model;
  const LoadReport report = LoadWeights(model, dir_ + "/new/folder", kNames);
  EXPECT_EQ(report.loaded.size(), saved.Parameters().size());
  for (const Parameter& p : saved.Parameters()) {
    EXPECT_EQ(ValuesOf(model, p.name), p.tensor.ToVector<float>()) << p.name;
  }
  const void* first = model.Parameters()[0].tensor.impl()->storage.get();
  for (const Parameter& p : model.Parameters()) {
    EXPECT_EQ(p.tensor.impl()->storage.get(), first);
  }
}

TEST_F(LoadWeightsTest, LeavesOutWhatWrappersAdd) {
  for (const std::string wrapper :
       {"module.", "model.", "_orig_mod.module.", "state_dict.model._orig_mod."}) {
    for (const std::string base : {"bert.", ""}) {
      Write(EncoderTensors(wrapper + base, "weight", "bias"));
      Model model;
      const LoadReport report = LoadWeights(model, dir_, kNames);
      ExpectEncoderLoaded(model);
      EXPECT_EQ(report.wrapper, wrapper);
      EXPECT_TRUE(report.Summary().starts_with("the model's names in the checkpoint start with \"" +
                                               wrapper + "\", which is left out\n"))
          << report.Summary();
      EXPECT_TRUE(report.missing.empty());
    }
  }
}

TEST_F(LoadWeightsTest, TensorsBesideAWrappedModelAreUnexpected) {
  const Names beside = {"loss.weight", "n_averaged", "train_accuracy.tp"};
  for (const std::string wrapper : {"module.", "model.", "model._orig_mod."}) {
    for (const std::string outer : {"", "state_dict."}) {
      for (const std::string base : {"bert.", ""}) {
        Tensors tensors = EncoderTensors(outer + wrapper + base, "gamma", "beta");
        Names expected;
        for (const std::string& name : beside) {
          tensors.emplace_back(outer + name, Tensor::FromVector<float>({1, 2}));
          expected.push_back(outer + name);
        }
        Write(tensors);
        Model model;
        const LoadReport report = LoadWeights(model, dir_, kNames);
        ExpectEncoderLoaded(model);
        EXPECT_EQ(report.wrapper, outer + wrapper);
        EXPECT_EQ(report.unexpected, expected);
        EXPECT_TRUE(report.missing.empty());
        EXPECT_EQ(report.fresh_head, (Names{"classifier.weight", "classifier.bias"}));
      }
    }
  }
}

// More tensors lie beside the model than in it.
TEST_F(LoadWeightsTest, AnotherModelBesideAWrappedOneIsUnexpected) {
  Tensors tensors = EncoderTensors("model.bert.", "weight", "bias");
  for (const auto& [name, tensor] : EncoderTensors("teacher.bert.", "weight", "bias"))
    tensors.emplace_back(name, tensor);
  tensors.emplace_back("teacher.classifier.bias", Tensor::FromVector<float>({1, 2, 3}));
  Write(tensors);
  Model model;
  const LoadReport report = LoadWeights(model, dir_, kNames);
  ExpectEncoderLoaded(model);
  EXPECT_EQ(report.wrapper, "model.");
  EXPECT_EQ(report.unexpected.size(), 5u);
  EXPECT_EQ(report.fresh_head.size(), 2u);
}

TEST_F(LoadWeightsTest, AHeadBesideAWrappedEncoderIsLoaded) {
  for (const std::string outer : {"", "state_dict."}) {
    Tensors tensors = EncoderTensors(outer + "model.", "weight", "bias");
    tensors.emplace_back(outer + "classifier.bias", Tensor::FromVector<float>({1, 2, 3}));
    // The model inside has this one, too, and goes first.
    tensors.emplace_back(outer + "bert.dense.bias", Tensor::FromVector<float>({0, 0}));
    Write(tensors);
    Model model;
    const LoadReport report = LoadWeights(model, dir_, kNames);
    ExpectEncoderLoaded(model);
    EXPECT_EQ(ValuesOf(model, "classifier.bias"), (std::vector<float>{1, 2, 3}));
    EXPECT_EQ(report.fresh_head, (Names{"classifier.weight"}));
    EXPECT_EQ(report.unexpected, (Names{outer + "bert.dense.bias"}));
  }
}

TEST_F(LoadWeightsTest, AWrapperMustHoldMoreOfTheModel) {
  Tensors tensors = EncoderTensors("bert.", "weight", "bias");
  tensors.emplace_back("module.bert.dense.weight", Tensor::FromVector<float>({1}));
  Write(tensors);
  Model model;
  const LoadReport report = LoadWeights(model, dir_, kNames);
  ExpectEncoderLoaded(model);
  EXPECT_EQ(report.wrapper, "");
  EXPECT_EQ(report.unexpected, (Names{"module.bert.dense.weight"}));
  // Nobody can tell which of two is meant.
  tensors = EncoderTensors("model.bert.", "weight", "bias");
  for (const auto& [name, tensor] : EncoderTensors("module.bert.", "weight", "bias"))
    tensors.emplace_back(name, tensor);
  Write(tensors);
  try {
    LoadWeights(model, dir_, kNames);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              dir_ + "/model.safetensors: holds two models, \"model.\" and \"module.\"");
  }
}

// ModernBERT's own names start with "model.", as those in Lightning's modules do.
TEST_F(LoadWeightsTest, AFamilysOwnPrefixIsNoWrapper) {
  class Own : public Module {
   public:
    Own() {
      Register<Encoder>("model");
      Register<Leaf>("classifier", Shape{3, 2}, 3);
    }
  };
  const auto wrapper = [&](const Tensors& tensors) {
    Write(tensors);
    Own model;
    const LoadReport report = LoadWeights(model, dir_, {.base_prefix = "model."});
    EXPECT_EQ(ValuesOf(model, "model.dense.weight"), (std::vector<float>{1, 2, 3, 4}));
    EXPECT_TRUE(report.missing.empty());
    return report.wrapper;
  };
  EXPECT_EQ(wrapper(EncoderTensors("model.", "weight", "bias")), "");
  Tensors whole = EncoderTensors("model.model.", "weight", "bias");
  whole.emplace_back("model.classifier.bias", Tensor::FromVector<float>({1, 2, 3}));
  EXPECT_EQ(wrapper(whole), "model.");
  EXPECT_EQ(wrapper(EncoderTensors("module.model.", "weight", "bias")), "module.");
}

// Four-bit weights come as bytes of another shape, eight-bit ones in the model's shape.
TEST_F(LoadWeightsTest, QuantizedWeightsAreNamed) {
  for (const Shape& shape : {Shape{2, 1}, Shape{2, 2}}) {
    Tensors tensors = EncoderTensors("bert.", "weight", "bias");
    tensors[0].second = Tensor::Zeros(shape, DType::kI32);
    Write(tensors);
    for (const bool ignore_mismatched_sizes : {false, true}) {
      Model model;
      try {
        LoadWeights(model, dir_, kNames, {.ignore_mismatched_sizes = ignore_mismatched_sizes});
        ADD_FAILURE() << "nothing was thrown";
      } catch (const Error& error) {
        EXPECT_EQ(error.message(), dir_ +
                                       "/model.safetensors: tensor \"bert.dense.weight\" has dtype "
                                       "I32, which can't be read as float32");
        EXPECT_NE(error.hint().find("quantized"), std::string::npos);
      }
    }
  }
}

TEST_F(LoadWeightsTest, RejectsWhatCannotBeTheModels) {
  Model model;
  EXPECT_THROW(LoadWeights(model, dir_, kNames), Error);  // no file
  Write({{"net.bert.dense.weight", Tensor::FromVector<float>({1})}});
  try {
    LoadWeights(model, dir_, kNames);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), dir_ +
                                   ": no tensor of the checkpoint belongs to this model: it has "
                                   "names such as \"net.bert.dense.weight\", the model such as "
                                   "\"bert.dense.weight\"");
  }
  Write({{"module.model.module.model.module.bert.dense.weight", Tensor::FromVector<float>({1})}});
  EXPECT_THROW(LoadWeights(model, dir_, kNames), Error);  // deeper than any program wraps
  Tensors twice = EncoderTensors("bert.", "weight", "bias");
  twice.emplace_back("bert.LayerNorm.gamma", Tensor::FromVector<float>({1, 2}));
  Write(twice);
  EXPECT_THROW(LoadWeights(model, dir_, kNames), Error);
}

}  // namespace
}  // namespace lathe
