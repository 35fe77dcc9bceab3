// Tests how attention_dispatch.cc uses a library, with the stand-in of tests/emulator/attention.h.
#include "lathe/core/cuda/attention/attention_dispatch.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "lathe/core/attention_counts.h"
#include "lathe/core/base/gemm_options.h"
#include "lathe/tests/attention_cases.h"
#include "lathe/tests/emulator/attention.h"

namespace lathe::cuda {
namespace {

using emulator::TheStandInAttention;

// The tuning file is read only once, so its path is set before anything is measured.
std::string TuningFile() { return testing::TempDir() + "/tuning.json"; }
std::string FileText() {
  std::ostringstream text;
  text << std::ifstream(TuningFile()).rdbuf();
  return text.str();
}

class AttentionDispatch : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("LATHE_TUNE_CACHE", TuningFile().c_str(), 1);
    std::ofstream(TuningFile()) << R"({"format": 1, "systems": {
        "attention, stand-in 1.0, Lathe 0.1.0, emulated device": {
          "forward bfloat16, 2 sequences of up to 128 tokens, 1 heads of 56, 16 rows":
            {"algorithm": ")" << std::string(128, '0')
                                << R"(", "milliseconds": 1},
          "backward bfloat16, 2 sequences of up to 128 tokens, 1 heads of 56, 16 rows":
            {"algorithm": null, "milliseconds": 1}}}})";
  }
  void SetUp() override { TheStandInAttention() = {}; }
  void TearDown() override {
    unsetenv("LATHE_ATTENTION");
    SetGemmOptions({});
  }
  // Runs attention's forward and backward pass. Returns how many of the two the library served.
  static int64_t Served(int64_t head_dim, const std::vector<int32_t>& lengths, int64_t surplus = 0,
                        double dropout = 0, DType dtype = DType::kBF16) {
    const int64_t before = GetAttentionCounts().library;
    RunOn(CheckedDevice(), dtype, dtype, head_dim, WithLengths(lengths), surplus,
          Options(1, false, dropout));
    return GetAttentionCounts().library - before;
  }
};

TEST_F(AttentionDispatch, OwnKernelsUnlessAskedOtherwise) {
  EXPECT_EQ(Served(64, {3, 5}), 0);
  for (const char* name : {"", "auto", "own", "plain"}) {
    setenv("LATHE_ATTENTION", name, 1);
    EXPECT_EQ(Served(64, {3, 5}), 0) << name;
  }
  EXPECT_TRUE(TheStandInAttention().built.empty());
  setenv("LATHE_ATTENTION", "cuDNN", 1);
  try {
    Served(64, {3, 5});
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.message(),
              "[attention] LATHE_ATTENTION must be auto, own, plain or cudnn but is \"cuDNN\"");
  }
}

// Batches share a plan if their lengths and their numbers of sequences round to the same.
TEST_F(AttentionDispatch, PlansAreMadeForRoundedShapesOnce) {
  setenv("LATHE_ATTENTION", "cudnn", 1);
  EXPECT_EQ(Served(8, {3, 5, 7}), 2);
  auto& built = TheStandInAttention().built;
  ASSERT_EQ(built.size(), 2u);
  const AttentionProblem forward = {
      .dtype = DType::kBF16, .batch = 4, .heads = 1, .head_dim = 8, .max_seqlen = 128};
  EXPECT_EQ(built[0], forward);
  EXPECT_TRUE(built[1].backward);
  EXPECT_EQ(Served(8, {3, 5, 7, 9}, 2), 2);
  EXPECT_EQ(Served(8, {128, 1, 1}), 2);
  EXPECT_EQ(built.size(), 2u);
  EXPECT_EQ(Served(8, {3, 5, 7}, 0, 0, DType::kF16), 2);
  EXPECT_EQ(Served(8, {3, 5, 7, 9, 11}), 2);
  EXPECT_EQ(Served(8, {129, 5, 7}), 2);
  EXPECT_EQ(Served(8, {3, 5, 7}, 0, 0.1), 2);
  ASSERT_EQ(built.size(), 10u);
  EXPECT_EQ(built[4].batch, 8);
  EXPECT_EQ(built[6].max_seqlen, 256);
  EXPECT_NEAR(built[8].threshold * 0x1p-32, 0.1, 1e-6);
}

// The library may read and write rows behind the last sequence without any effect on the results.
TEST_F(AttentionDispatch, NothingLeaksFromSurplusRows) {
  setenv("LATHE_ATTENTION", "cudnn", 1);
  TheStandInAttention().spoiled_rows = 5;
  TheStandInAttention().workspace_bytes = 5000;
  CompareWithHost(16, WithLengths({3, 70}), 5, Options(2, false, 0), {DType::kBF16, DType::kF16});
  EXPECT_EQ(TheStandInAttention().runs, 4);
}

TEST_F(AttentionDispatch, SaysWhyItDoesNotServe) {
  setenv("LATHE_ATTENTION", "cudnn", 1);
  TheStandInAttention().largest_head_dim = 32;
  EXPECT_EQ(Served(40, {3}), 0);
  EXPECT_EQ(Served(40, {3}), 0);
  EXPECT_EQ(GetAttentionCounts().why_not_library, "stand-in 1.0: heads of 40 columns");
  EXPECT_EQ(TheStandInAttention().built.size(), 2u);  // one for each pass, not asked again
  TheStandInAttention().workspace_bytes = (int64_t{1} << 30) + 1;
  EXPECT_EQ(Served(24, {3}), 0);
  EXPECT_EQ(
      GetAttentionCounts().why_not_library,
      "backward bfloat16, 1 sequences of up to 128 tokens, 1 heads of 24 would need 1024 MiB of "
      "workspace");
  TheStandInAttention().workspace_bytes = 0;
  TheStandInAttention().missing = "no such library";
  EXPECT_EQ(Served(16, {3}), 0);
  EXPECT_EQ(GetAttentionCounts().why_not_library, "no such library");
}

TEST_F(AttentionDispatch, AFailureIsSaid) {
  setenv("LATHE_ATTENTION", "cudnn", 1);
  TheStandInAttention().fails = true;
  EXPECT_THROW(Served(8, {3, 5, 7}), Error);
}

TEST_F(AttentionDispatch, TuningTakesTheFaster) {
  TuneGemms(true);
  TheStandInAttention().microseconds = 1;  // plus 10 us for each of its launches
  EXPECT_EQ(Served(48, {3}), 0);
  EXPECT_EQ(TheStandInAttention().runs, 8);
  EXPECT_EQ(Served(48, {4}), 0);
  EXPECT_EQ(TheStandInAttention().runs, 8);  // not measured again
  TheStandInAttention().microseconds = -1000;
  EXPECT_EQ(Served(48, {3, 3}), 2);
  EXPECT_EQ(TheStandInAttention().runs, 18);
  // Another number of rows counts as another shape.
  EXPECT_EQ(Served(48, {3, 30}), 2);
  EXPECT_EQ(TheStandInAttention().runs, 28);
  TheStandInAttention().fails = true;
  EXPECT_EQ(Served(48, {3, 30, 90}), 0);
  // The library's dropout masks differ from the CPU's, so tuning never chooses it for dropout.
  TheStandInAttention().fails = false;
  EXPECT_EQ(Served(48, {3, 3}, 0, 0.1), 0);
}

TEST_F(AttentionDispatch, ResultsDoNotDependOnWhoWasMeasured) {
  TuneGemms(true);
  for (const int64_t microseconds : {-1000, 1000}) {
    TheStandInAttention().microseconds = microseconds;
    CompareWithHost(32, WithLengths({3, 70, microseconds < 0 ? 1 : 200}), 2, Options(2, false, 0),
                    {DType::kBF16, DType::kF16});
  }
}

TEST_F(AttentionDispatch, DeterminismMeansNoMeasurement) {
  TuneGemms(true);
  UseDeterministicGemms(true);
  EXPECT_EQ(Served(56, {3, 9}), 0);  // whatever the file says
  setenv("LATHE_ATTENTION", "cudnn", 1);
  EXPECT_EQ(Served(56, {3, 9}), 2);
  EXPECT_EQ(TheStandInAttention().runs, 2);
}

TEST_F(AttentionDispatch, WhatWasMeasuredIsKept) {
  TuneGemms(true);
  EXPECT_EQ(Served(56, {3, 9}), 1);  // the forward pass, as the file says
  EXPECT_EQ(TheStandInAttention().runs, 1);
  // The file is written at most once a second.
  for (int i = 0; i < 20 && FileText().find("1 heads of 120") == std::string::npos; ++i) {
    struct timespec pause = {0, 100'000'000};
    nanosleep(&pause, nullptr);
    Served(120, std::vector<int32_t>(static_cast<size_t>(1 << i % 8), 1));
  }
  EXPECT_NE(FileText().find("\"attention, stand-in 1.0, Lathe 0.1.0, emulated device\""),
            std::string::npos);
  EXPECT_NE(FileText().find("1 heads of 120"), std::string::npos) << FileText();
}

// A recorded graph uses the plans that earlier steps have made. No plan is made while it is
// recorded.
TEST_F(AttentionDispatch, RecordedWork) {
  setenv("LATHE_ATTENTION", "cudnn", 1);
  DeviceBackend& backend = BackendOf(CheckedDevice());
  const std::vector<int32_t> cu = WithLengths({3, 5});
  const PackedSequences packed = At(Tensor::Zeros({1}, DType::kF32, CheckedDevice()), Packed(cu));
  const auto attend = [&](int64_t head_dim, Tensor step) {
    std::vector<float> values(static_cast<size_t>(3 * 8 * head_dim));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) - 3;
    const Tensor all =
        Tensor::FromVector(values, {24, head_dim}).To(DType::kBF16).To(CheckedDevice());
    return [=] {
      const Tensor q = all.Slice(0, 8), kv = all.Slice(8, 24);
      AttentionOptions options = Options(1, false, step.defined() ? 0.5 : 0);
      options.dropout.device_step = step;
      return PackedAttention(q, kv, packed, options);
    };
  };
  const auto values = [](const Tensor& x) { return x.To(DType::kF64).ToVector<double>(); };
  {  // without an earlier run, Lathe's own kernels are recorded
    const auto work = attend(64, {});
    const std::shared_ptr<DeviceMemoryPool> memory = backend.NewMemoryPool();
    const DeviceMemoryPoolScope scope(backend, memory);
    Tensor out;
    const int64_t before = GetAttentionCounts().library;
    const auto recorded = backend.Record([&] { out = work(); });
    EXPECT_EQ(GetAttentionCounts().library, before);
    EXPECT_NE(GetAttentionCounts().why_not_library.find("before work was recorded"),
              std::string::npos);
    recorded->Launch();
    setenv("LATHE_ATTENTION", "own", 1);
    EXPECT_EQ(values(out), values(work()));
    setenv("LATHE_ATTENTION", "cudnn", 1);
  }
  {  // after an earlier run, the library's are, with new masks in each step
    const Tensor step = Tensor::FromVector<int32_t>({1}).To(CheckedDevice());
    const auto work = attend(32, step);
    const std::vector<double> first = values(work());
    const std::shared_ptr<DeviceMemoryPool> memory = backend.NewMemoryPool();
    const DeviceMemoryPoolScope scope(backend, memory);
    Tensor out;
    const auto recorded = backend.Record([&] { out = work(); });
    recorded->Launch();
    EXPECT_EQ(values(out), first);
    const Tensor two = Tensor::FromVector<int32_t>({2}).To(CheckedDevice());
    backend.CopyOnDevice(step.raw_data(), two.raw_data(), 4);
    recorded->Launch();
    const std::vector<double> second = values(out);
    EXPECT_NE(second, first);
    EXPECT_EQ(second, values(work()));
    const auto& seeds = TheStandInAttention().seeds;
    ASSERT_EQ(seeds.size(), 4u);
    EXPECT_EQ(seeds[0], seeds[1]);
    EXPECT_NE(seeds[1], seeds[2]);
    EXPECT_EQ(seeds[2], seeds[3]);
  }
}

}  // namespace
}  // namespace lathe::cuda
