// Tests attention's graphs with the real cuDNN, on GPUs that are described but need not exist. They
// show that cuDNN accepts the graphs, which engines it proposes, and that these compile until a
// driver is needed. Skipped if cuDNN, its compiler or any libcuda.so.1 is missing. No kernel runs
// here.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/cuda/attention/attention_cudnn_graph.h"

namespace lathe::cuda {
namespace {

namespace fs = std::filesystem;

// Makes sure that a libcuda.so.1 is loaded: cuDNN needs one, though it calls nothing in it that
// matters here. Without a driver, this takes CUDA's stub, which has another file name. Returns why
// there is none, or an empty string.
std::string WhyNoDriver() {
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != nullptr) return "";
  const char* root = std::getenv("CUDA_PATH");
  const std::string stub =
      std::string(root == nullptr || *root == '\0' ? "/usr/local/cuda" : root) +
      "/lib64/stubs/libcuda.so";
  const fs::path copy = fs::path(testing::TempDir()) / "libcuda.so.1";
  std::error_code failed;
  fs::copy_file(stub, copy, fs::copy_options::overwrite_existing, failed);
  if (failed) return "no libcuda.so.1, and no " + stub;
  // Later dlopen calls for libcuda.so.1 find this copy by its name.
  return dlopen(copy.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr ? "" : dlerror();
}

std::string DeviceJson(const std::string& name, int64_t bytes) {
  return R"({"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)"
         R"("regsPerBlock":65536,"multiProcessorCount":132,"smClockRateKHz":1980000,)"
         R"("memClockRateKHz":3201000,"l2CacheSize":62914560,"warpSize":32,)"
         R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,)"
         R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"pciDeviceId":0,)"
         R"("maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"isTccDriver":0,)"
         R"("supportCoopLaunch":1,"deviceVer":900,"driverVer":13000,"totalGlobalMem":)" +
         std::to_string(bytes) + R"(,"deviceName":")" + name + R"(","cudaDeviceId":0})";
}

struct Answer {
  int64_t operations = 0, configs = 0;
  std::string why_no_plan;
};

class CudnnAttention : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoDriver(); !why.empty()) GTEST_SKIP() << why;
    try {
      Cudnn();
    } catch (const Error& e) {
      GTEST_SKIP() << e.message();
    }
  }

  static Answer Ask(const AttentionProblem& problem, const std::string& device, bool compile) {
    CudnnDescriptors described(Cudnn());
    const CudnnTarget target = {.device = described.New(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)};
    described.Set(target.device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                  std::ssize(device), device.data());
    described.Finalize(target.device);
    CudnnGraph graph(Cudnn());
    Answer answer;
    try {
      AddAttention(graph, problem);
      answer.operations = graph.num_operations();
      graph.Finalize(target);
      answer.configs = std::ssize(graph.Configs(target));
      if (compile || answer.configs == 0) graph.FirstPlan(target);
    } catch (const Error& e) {
      answer.why_no_plan = e.message();
    }
    return answer;
  }
};

const std::string kH100 = DeviceJson("NVIDIA H100 80GB HBM3", int64_t{85045346304});
const std::string kH200 = DeviceJson("NVIDIA H200", int64_t{150754820096});

TEST_F(CudnnAttention, IsProposedForHoppers) {
  for (const std::string& device : {kH100, kH200}) {
    for (const int64_t head_dim : {32, 64, 128}) {
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        for (const bool backward : {false, true}) {
          for (const double p : {0.0, 0.1}) {
            const AttentionProblem problem = {.backward = backward,
                                              .dtype = dtype,
                                              .batch = 32,
                                              .heads = 12,
                                              .head_dim = head_dim,
                                              .max_seqlen = 128,
                                              .threshold = static_cast<uint32_t>(p * 0x1p32)};
            SCOPED_TRACE(Describe(problem));
            const Answer answer = Ask(problem, device, /*compile=*/false);
            EXPECT_EQ(answer.why_no_plan, "");
            EXPECT_EQ(answer.operations, backward ? (p > 0 ? 28 : 23) : (p > 0 ? 19 : 16));
            EXPECT_GE(answer.configs, 1);
          }
        }
      }
    }
  }
}

TEST_F(CudnnAttention, LongAndManySequencesAreProposed) {
  for (const bool backward : {false, true}) {
    for (const int64_t max_seqlen : {256, 384, 512}) {
      for (const int64_t batch : {1, 256}) {
        const AttentionProblem problem = {.backward = backward,
                                          .batch = batch,
                                          .heads = 16,
                                          .head_dim = 64,
                                          .max_seqlen = max_seqlen};
        SCOPED_TRACE(Describe(problem));
        const Answer answer = Ask(problem, kH200, /*compile=*/false);
        EXPECT_EQ(answer.why_no_plan, "");
        EXPECT_GE(answer.configs, 1);
      }
    }
  }
}

// Without a driver the kernel is compiled, but then it can't be loaded.
TEST_F(CudnnAttention, CompilesAsFarAsTheDriver) {
  for (const bool backward : {false, true}) {
    const AttentionProblem problem = {
        .backward = backward, .batch = 32, .heads = 12, .head_dim = 64, .max_seqlen = 128};
    const Answer answer = Ask(problem, kH200, /*compile=*/true);
    EXPECT_GE(answer.configs, 1);
    if (answer.why_no_plan.empty()) continue;  // there is a GPU
    EXPECT_NE(answer.why_no_plan.find("cuLibraryLoadData"), std::string::npos)
        << answer.why_no_plan;
  }
}

// An unsupported head size is refused with a reason. The forward pass isn't checked for 1024
// columns: cuDNN proposes an engine even there, so a proposal says little.
TEST_F(CudnnAttention, RefusesWithAReason) {
  for (const bool backward : {false, true}) {
    const auto why_not = [&](int64_t head_dim) {
      return Ask({.backward = backward,
                  .batch = 2,
                  .heads = 2,
                  .head_dim = head_dim,
                  .max_seqlen = 128},
                 kH200, /*compile=*/true)
          .why_no_plan;
    };
    for (const int64_t head_dim : {20, 36}) EXPECT_NE(why_not(head_dim), "") << head_dim;
    if (backward) {
      EXPECT_NE(why_not(1024), "");
    }
  }
}

}  // namespace
}  // namespace lathe::cuda
