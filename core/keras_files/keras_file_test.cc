#include "lathe/core/keras_files/keras_file.h"

#include <absl/status/status.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <numeric>
#include <optional>
#include <random>

#include "lathe/core/base/file.h"
#include "lathe/core/keras_files/confined_child.h"
#include "lathe/core/keras_files/hdf5_arrays.h"
#include "lathe/core/keras_files/tensorflow_names.h"
#include "lathe/core/safetensors/safetensors.h"
#include "lathe/core/weight_files/weight_file_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Values = std::vector<float>;

TEST(TensorFlowNamesTest, AreThoseOfPyTorch) {
  const auto name = [](const char* variable) { return TorchNameOf(variable, true).name; };
  EXPECT_EQ(name("tf_bert_model/bert/encoder/layer_._10/attention/self/query/kernel:0"),
            "bert.encoder.layer.10.attention.self.query.weight");
  EXPECT_EQ(name("tf_bert_model/bert/embeddings/LayerNorm/gamma:0"),
            "bert.embeddings.LayerNorm.weight");
  EXPECT_EQ(name("tf_bert_model/bert/embeddings/LayerNorm/beta:0"),
            "bert.embeddings.LayerNorm.bias");
  EXPECT_EQ(name("tf_bert_model/bert/embeddings/position_embeddings/embeddings:0"),
            "bert.embeddings.position_embeddings.weight");
  EXPECT_EQ(name("tf_bert_model/bert/embeddings/word_embeddings/weight:0"),
            "bert.embeddings.word_embeddings.weight");
  EXPECT_EQ(name("tf_bert_for_pre_training/mlm___cls/predictions/transform/dense/kernel:0"),
            "cls.predictions.transform.dense.weight");
  EXPECT_EQ(name("tf_deberta_v2_model/deberta/encoder/rel_embeddings.weight:0"),
            "deberta.encoder.rel_embeddings.weight");
  EXPECT_EQ(name("tf_albert_model/albert/encoder/albert_layer_groups_._0/albert_layers_._1/"
                 "ffn//kernel:0"),
            "albert.encoder.albert_layer_groups.0.albert_layers.1.ffn.weight");
  EXPECT_EQ(name("final_logits_bias:0"), "final_logits_bias");
  EXPECT_EQ(name(""), "");
  EXPECT_EQ(TorchNameOf("bert/pooler/dense/kernel:0", false).name, "bert.pooler.dense.weight");
  const std::string attention = "tf_conv_bert_model/convbert/encoder/layer_._0/attention/self/";
  EXPECT_EQ(name((attention + "key_conv_attn_layer/depthwise_kernel:0").c_str()),
            "convbert.encoder.layer.0.attention.self.key_conv_attn_layer.depthwise.weight");
  EXPECT_EQ(name((attention + "key_conv_attn_layer/pointwise_kernel:0").c_str()),
            "convbert.encoder.layer.0.attention.self.key_conv_attn_layer.pointwise.weight");
  EXPECT_EQ(name((attention + "key_conv_attn_layer/bias:0").c_str()),
            "convbert.encoder.layer.0.attention.self.key_conv_attn_layer.bias");
  const auto kind = [](const char* variable) { return TorchNameOf(variable, false).kind; };
  EXPECT_EQ(kind("bert/pooler/dense/kernel:0"), VariableKind::kKernel);
  EXPECT_EQ(kind("bert/pooler/dense/bias:0"), VariableKind::kPlain);
  EXPECT_EQ(kind("x/depthwise_kernel:0"), VariableKind::kDepthwiseKernel);
  EXPECT_EQ(kind("x/pointwise_kernel:0"), VariableKind::kKernel);
}

TEST(TensorFlowNamesTest, DimensionsComeInPyTorchsOrder) {
  const auto order = [](VariableKind kind, int rank) {
    std::vector<int> all;
    for (int i = 0; i < rank; ++i) all.push_back(TorchOrder(kind, rank, i));
    return all;
  };
  using Order = std::vector<int>;
  EXPECT_EQ(order(VariableKind::kPlain, 2), (Order{0, 1}));
  EXPECT_EQ(order(VariableKind::kKernel, 2), (Order{1, 0}));
  EXPECT_EQ(order(VariableKind::kKernel, 3), (Order{2, 1, 0}));
  EXPECT_EQ(order(VariableKind::kKernel, 4), (Order{3, 2, 0, 1}));
  EXPECT_EQ(order(VariableKind::kKernel, 1), (Order{0}));
  EXPECT_EQ(order(VariableKind::kDepthwiseKernel, 3), (Order{1, 2, 0}));
  EXPECT_EQ(order(VariableKind::kDepthwiseKernel, 1), (Order{0}));
}

// Runs `body` in a confined child and returns what went wrong.
std::string FailureOf(const std::function<void(int)>& body, int64_t seconds = 20) {
  return RunConfined("test", STDERR_FILENO,
                     {.memory = 256 << 20, .written = 1 << 20, .seconds = seconds}, body)
      .failure;
}

TEST(ConfinedChildTest, GivesBackWhatTheBodyWrites) {
  const ConfinedResult result =
      RunConfined("test", STDERR_FILENO, {.memory = 1 << 28, .written = 1 << 20, .seconds = 5},
                  [](int pipe) { EXPECT_EQ(write(pipe, "answer", 6), 6); });
  EXPECT_EQ(result.message, "answer");
  EXPECT_EQ(result.failure, "");
}

TEST(ConfinedChildTest, CanDoNothingElse) {
  const std::string forbidden = "crashed (signal " + std::to_string(SIGSYS) + ")";
  EXPECT_EQ(FailureOf([](int) { syscall(SYS_open, "/etc/passwd", 0); }), forbidden);
  EXPECT_EQ(FailureOf([](int) { syscall(SYS_openat, -100, "/etc/passwd", 0); }), forbidden);
  EXPECT_EQ(FailureOf([](int) { syscall(SYS_socket, AF_INET, SOCK_STREAM, 0); }), forbidden);
  EXPECT_EQ(FailureOf([](int) { syscall(SYS_execve, "/bin/true", nullptr, nullptr); }), forbidden);
  EXPECT_EQ(FailureOf([](int) { syscall(SYS_fork); }), forbidden);
  EXPECT_EQ(FailureOf([](int) { syscall(SYS_kill, getppid(), SIGTERM); }), forbidden);
  EXPECT_EQ(FailureOf([](int) { syscall(SYS_read, 0, nullptr, 0); }), forbidden);
  EXPECT_EQ(FailureOf([](int) { syscall(SYS_write, STDIN_FILENO, "x", 1); }), forbidden);
  EXPECT_EQ(FailureOf([](int) { syscall(SYS_mmap, nullptr, 4096, 7, 0x22, -1, 0); }), forbidden);
}

TEST(ConfinedChildTest, FailuresOfTheChildAreReported) {
  const volatile uintptr_t nowhere = 4096;
  EXPECT_EQ(FailureOf([&](int) { *reinterpret_cast<volatile int*>(nowhere) = 1; }),
            "crashed (signal " + std::to_string(SIGSEGV) + ")");
  EXPECT_EQ(FailureOf([](int) { _exit(3); }), "failed");
  const auto compute_for_ever = [](int) {
    volatile bool forever = true;
    while (forever) {
    }
  };
  EXPECT_EQ(FailureOf(compute_for_ever, 1).substr(0, 13), "took too long");
#ifndef __SANITIZE_ADDRESS__  // it ends the process itself
  EXPECT_EQ(FailureOf([](int) {
              void* volatile block = std::malloc(size_t{1} << 30);  // behind the limit
              if (block == nullptr) _exit(4);
            }),
            "failed");
#endif
}

class KerasFileTest : public WeightFileTest {
 protected:
  KerasFileTest() : WeightFileTest("tf_model.h5", ReadKerasFile) {}
};

const fs::path kBert = "tests/golden/weights/bert", kRare = "tests/golden/weights_rare";

// Returns sixteen float32, all of this value.
std::string FloatBytes(float value) {
  const std::vector<float> values(16, value);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof value};
}

TEST_F(KerasFileTest, HasTheTensorsOfPyTorch) {
  const SafetensorsReader expected(kBert / "safetensors/model.safetensors");
  for (const StoredArrays& arrays :
       {ReadKerasFile(kBert / "h5/tf_model.h5"), ReadKerasFile(kBert / "h5-packed/tf_model.h5"),
        ReadKerasShards(kBert / "h5-shards/tf_model.h5.index.json")}) {
    EXPECT_EQ(arrays.size(), expected.entries().size());
    for (const auto& [name, entry] : expected.entries()) {
      ASSERT_TRUE(arrays.contains(name)) << name;
      EXPECT_EQ(arrays.at(name).shape, entry.shape) << name;
      EXPECT_EQ(ValuesOf(arrays, name), expected.Read(name).ToVector<float>()) << name;
    }
  }
}

// Early versions of Transformers 4 wrote attention's kernels and biases with a dimension of heads.
TEST_F(KerasFileTest, HeadsOfTheirOwnFitTheModel) {
  const SafetensorsReader expected(kBert / "safetensors/model.safetensors");
  const StoredArrays arrays = ReadKerasFile(kBert / "h5-einsum/tf_model.h5");
  EXPECT_EQ(arrays.size(), expected.entries().size());
  const std::string layer = "bert.encoder.layer.0.attention.";
  EXPECT_EQ(arrays.at(layer + "self.query.weight").shape, (Shape{4, 2, 8}));
  EXPECT_EQ(arrays.at(layer + "self.query.bias").shape, (Shape{2, 4}));
  EXPECT_EQ(arrays.at(layer + "output.dense.weight").shape, (Shape{8, 4, 2}));
  for (const auto& [name, array] : arrays) {
    const StoredArray fitted = array.fit(array, expected.entries().at(name).shape);
    Tensor tensor = Tensor::Empty(expected.entries().at(name).shape);
    ReadStoredArray(name, fitted, tensor);
    EXPECT_EQ(tensor.ToVector<float>(), expected.Read(name).ToVector<float>()) << name;
  }
  // Nothing else is made to fit.
  const auto fitted = [&](const std::string& name, const Shape& wanted) {
    return arrays.at(name).fit(arrays.at(name), wanted).shape;
  };
  EXPECT_EQ(fitted(layer + "self.query.weight", {16, 4}), (Shape{4, 2, 8}));
  EXPECT_EQ(fitted(layer + "self.query.weight", {64}), (Shape{4, 2, 8}));
  EXPECT_EQ(fitted(layer + "self.query.bias", {9}), (Shape{2, 4}));
  EXPECT_EQ(fitted("bert.pooler.dense.weight", {64}), (Shape{8, 8}));
  EXPECT_EQ(fitted("bert.pooler.dense.bias", {2, 4}), (Shape{8}));
  EXPECT_EQ(fitted("bert.pooler.dense.bias", {8, 1}), (Shape{8, 1}));  // as in ConvBERT
}

Values Numbers(int first) {
  Values numbers(16);
  std::iota(numbers.begin(), numbers.end(), static_cast<float>(first));
  return numbers;
}

// h5py wrote these files. Keras writes neither user blocks nor links.
TEST_F(KerasFileTest, ReadsBehindUserBlocksAndThroughLinks) {
  for (const char* file : {"user_block_512.h5", "user_block_4096.h5", "soft_links.h5"}) {
    const StoredArrays arrays = ReadKerasFile(kRare / file);
    EXPECT_EQ(arrays.size(), 2u) << file;
    EXPECT_EQ(ValuesOf(arrays, "w"), Numbers(0)) << file;
    EXPECT_EQ(ValuesOf(arrays, "v"), Numbers(16)) << file;  // compressed in the first two
  }
  // Another program may put a user block before a file that has none.
  const StoredArrays arrays = Read(std::string(2048, ' ') + ReadFile(kRare / "soft_links.h5"));
  EXPECT_EQ(ValuesOf(arrays, "w"), Numbers(0));
  EXPECT_EQ(ValuesOf(arrays, "v"), Numbers(16));
}

// Returns what `body` returns in a process that sees only this folder. Returns nullopt if this
// process may not make one.
std::optional<int> RunInFolder(const fs::path& folder, const std::function<int()>& body) {
  constexpr int kMayNot = 77;
  const pid_t child = fork();
  if (child == 0) {
    const auto enter = [&] { return chroot(folder.c_str()) == 0 && chdir("/") == 0; };
    if (!enter() && (unshare(CLONE_NEWUSER) != 0 || !enter())) _exit(kMayNot);
    _exit(body());
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status) == kMayNot ? std::nullopt : std::optional(WEXITSTATUS(status));
}

TEST_F(KerasFileTest, NeedsNoProcFileSystem) {
  fs::copy(kRare / "user_block_512.h5", file_);
  ReadKerasFile(file_);  // opens HDF5's library, which the folder lacks
  const std::optional<int> failed = RunInFolder(dir_, [] {
    if (access("/proc", F_OK) == 0) return 1;
    // More addresses than the child may use beyond those of this process.
    constexpr size_t kUsed = size_t{4} << 30;
    if (mmap(nullptr, kUsed, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) return 2;
    try {
      const StoredArrays arrays = ReadKerasFile("/tf_model.h5");
      const Values w = Numbers(0), v = Numbers(16);
      const size_t size = w.size() * sizeof w[0];
      return std::memcmp(arrays.at("w").data, w.data(), size) == 0 &&
                     std::memcmp(arrays.at("v").data, v.data(), size) == 0
                 ? 0
                 : 3;
    } catch (const Error& error) {
      std::cerr << error.what() << std::endl;
      return 4;
    }
  });
  if (!failed) GTEST_SKIP() << "this process may not enter another root folder";
  EXPECT_EQ(*failed, 0);
}

TEST_F(KerasFileTest, RefusesOtherFiles) {
  EXPECT_EQ(Refusal(""), "is no HDF5 file");
  EXPECT_EQ(Refusal("<html>"), "is no HDF5 file");
  const std::string bytes = ReadFile(kRare / "soft_links.h5");
  for (const size_t size : {1, 511, 513, 1536}) {  // no user block has this size
    EXPECT_EQ(Refusal(std::string(size, ' ') + bytes), "is no HDF5 file") << size;
  }
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer ends some of the processes otherwise";
#endif
  EXPECT_EQ(Refusal("\x89HDF\r\n\x1a\n"), "HDF5 can't read it");
  for (const auto& [file, message] : std::vector<std::pair<std::string, std::string>>{
           {"soft_link", "it lacks \"layer/soft:0\", which it lists"},
           {"circle", "\"layer/a/w:0\" leads through too many links"},
           {"way_out", "\"layer/out\" leads to another file, which Lathe does not read"},
           {"external_link",
            "\"layer/external:0\" leads to another file, which Lathe does not read"},
           {"external_elements", "\"layer/w:0\" has its elements in another file"},
           {"missing", "it lacks \"layer/none:0\", which it lists"},
           {"virtual", "\"layer/w:0\" is virtual: it has its elements in other datasets"},
           {"big_endian", "\"layer/w:0\" has big-endian numbers, which Lathe does not read"},
           {"text", "\"layer/w:0\" has a type that Lathe does not have"},
           {"other_filter",
            "\"layer/w:0\" is packed by filter 32000 (LZF), which Lathe does not read"},
           {"two_values", "has two tensors \"w\""},
           {"crash", "the process that read it crashed (signal 11)"},
           {"bomb", "the process that read it found more values than the file can have"},
           {"no_names", "lists no weights (\"layer_names\")"}}) {
    EXPECT_EQ(Refusal(ReadFile("tests/golden/weights_refused/" + file + ".h5")), message) << file;
  }
}

TEST_F(KerasFileTest, SaysHowToSaveASoundFileThatItCannotRead) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer ends some of the processes otherwise";
#endif
  for (const char* file : {"big_endian", "text", "other_filter", "way_out", "external_link",
                           "external_elements", "virtual"}) {
    try {
      ReadKerasFile("tests/golden/weights_refused/" + std::string(file) + ".h5");
      ADD_FAILURE() << file;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument) << error.what();
      EXPECT_TRUE(error.hint().starts_with("write the file again")) << error.hint();
    }
  }
}

// Other programs than Transformers write .h5 files, too.
TEST_F(KerasFileTest, AFileWithoutListedWeightsMayBeSound) {
  try {
    ReadKerasFile("tests/golden/weights_refused/no_names.h5");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument) << error.what();
    EXPECT_NE(error.hint().find("save the model with save_pretrained"), std::string::npos)
        << error.hint();
  }
}

// Two layers may list one variable, each with a copy of its values.
TEST_F(KerasFileTest, TensorsThatAreListedTwiceAreAlike) {
  std::string bytes = ReadFile("tests/golden/weights_refused/two_values.h5");
  const std::string first = FloatBytes(1), second = FloatBytes(2);
  const size_t at = bytes.find(second);
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, second.size(), first);
  const StoredArrays arrays = Read(bytes);
  EXPECT_EQ(arrays.size(), 1u);
  EXPECT_EQ(ValuesOf(arrays, "w"), std::vector<float>(16, 1));
  bytes[at] ^= 1;  // a bit is enough
  EXPECT_EQ(Refusal(bytes), "has two tensors \"w\"");
}

TEST_F(KerasFileTest, RefusesShardsThatAreMissingOrAlike) {
  const auto refusal = [&](const std::string& map) -> std::string {
    std::ofstream(dir_ / "tf_model.h5.index.json") << R"({"weight_map":)" + map + "}";
    try {
      ReadKerasShards(dir_ / "tf_model.h5.index.json");
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  fs::copy(kBert / "h5-shards/tf_model-00001-of-00002.h5", dir_ / "a.h5");
  fs::copy(kBert / "h5-shards/tf_model-00001-of-00002.h5", dir_ / "b.h5");
  EXPECT_EQ(refusal(R"({"x":"a.h5"})"), "");
  EXPECT_NE(refusal(R"({"x":"a.h5","y":"b.h5"})").find("is also in"), std::string::npos);
  EXPECT_NE(refusal(R"({"x":"c.h5"})").find("c.h5: the file is missing"), std::string::npos);
  std::ofstream(dir_ / "d.h5") << "version https://git-lfs.github.com/spec/v1\n";
  EXPECT_NE(refusal(R"({"x":"d.h5"})").find("d.h5: is only a pointer of Git LFS"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"x":"../a.h5"})").find("must be the name of a .h5 file beside it"),
            std::string::npos);
}

// HDF5 has no checksums here, so a changed number may be read. But no file may end the program, or
// give a tensor that isn't in the file. LATHE_H5_RUNS is the number of changed files.
TEST_F(KerasFileTest, ChangedFilesAreReadOrRefused) {
  const char* const given = std::getenv("LATHE_H5_RUNS");
  const int runs = given == nullptr ? 2'000 : std::atoi(given);
  const SafetensorsReader original(kBert / "safetensors/model.safetensors");
  std::vector<std::string> files;
  for (const fs::path& folder : {kBert / "h5", kBert / "h5-packed", kBert / "h5-shards", kRare}) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".h5") files.push_back(ReadFile(entry.path()));
    }
  }
  std::mt19937_64 random(20251126);
  int read = 0, refused = 0, crashed = 0, reshaped = 0;
  for (int run = 0; run < runs; ++run) {
    std::string bytes = files[random() % files.size()];
    for (uint64_t change = random() % 4 + 1; change > 0; --change) {
      const uint64_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ 1 << random() % 8);
          break;
        case 1:
          bytes[at] = static_cast<char>(random());
          break;
        case 2:
          for (uint64_t i = at; i < std::min<uint64_t>(at + 8, bytes.size()); ++i) {
            bytes[i] = static_cast<char>(random() % 2 == 0 ? 0xff : random() % 2);
          }
          break;
        default:
          if (random() % 8 == 0) bytes.resize(at + 1);
      }
    }
    try {
      bool is_reshaped = false;
      for (const auto& [name, array] : Read(bytes)) {
        const auto same = original.entries().find(name);
        is_reshaped |= same != original.entries().end() && same->second.shape != array.shape;
        Tensor tensor = Tensor::Empty(array.shape);
        if (tensor.numel() <= 10'000 && array.dtype[0] == 'F') ReadStoredArray(name, array, tensor);
      }
      ++read;
      reshaped += is_reshaped;
    } catch (const Error& error) {
      ++refused;
      EXPECT_NE(error.message(), "");
      crashed += error.message().find("crashed") != std::string::npos;
    }
  }
  EXPECT_GT(read, 0);
  EXPECT_GT(refused, 0);
  EXPECT_LE(reshaped, read / 10);  // only a change to a shape itself may give another shape
  std::cout << runs << " changed files: " << read << " read, " << reshaped
            << " of those with another shape, " << refused << " refused, of those " << crashed
            << " after a crash of the process that read them\n";
}

}  // namespace
}  // namespace lathe
