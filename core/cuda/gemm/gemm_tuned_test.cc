// Tests which of cuBLASLt's algorithms gemm.cc takes, when it tunes, and what it keeps for later
// processes.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "lathe/core/base/file.h"
#include "lathe/core/base/gemm_options.h"
#include "lathe/core/cuda/gemm/gemm_testing.h"
#include "lathe/core/cuda/runtime/device.h"

namespace lathe::cuda {
namespace {

TEST_F(Gemms, TakeTheFastestAlgorithmWhenTuned) {
  Fake().milliseconds = {5, 4, 3, 1, 2};
  Fake().failing = {3};
  TuneGemms(true);
  for (const bool accumulate : {false, true}) {
    Try<BFloat16, float>({12, 7, 9, false, false, accumulate});  // timing leaves C alone
    EXPECT_EQ(Fake().requested, 16);
    EXPECT_EQ(Fake().products.back().algorithm, 4);
  }
  const size_t runs = Fake().products.size();
  Try<BFloat16, float>({12, 7, 9});
  EXPECT_EQ(Fake().products.size(), runs + 1);
  EXPECT_EQ(Fake().products.back().algorithm, 4);
  // Without tuning the first algorithm is taken, but tuned problems keep theirs.
  TuneGemms(false);
  Try<BFloat16, float>({13, 7, 9});
  EXPECT_EQ(Fake().products.back().algorithm, 0);
  Try<BFloat16, float>({12, 7, 9});
  EXPECT_EQ(Fake().products.back().algorithm, 4);
  // A problem that has a plan already is tuned as soon as tuning is asked for.
  TuneGemms(true);
  Try<BFloat16, float>({13, 7, 9});
  EXPECT_EQ(Fake().products.back().algorithm, 4);
  // Deterministic products always take the library's first choice.
  UseDeterministicGemms(true);
  Try<BFloat16, float>({12, 7, 9});
  EXPECT_EQ(Fake().products.back().algorithm, 0);
  EXPECT_EQ(Fake().requested, 1);
}

TEST_F(Gemms, SumRowsOfAAsIsFasterWhenTuned) {
  TuneGemms(true);
  Fake().milliseconds = {5, 4};
  Fake().bias_gradient_milliseconds = 3;  // in the epilogue
  Fake().column_sums_milliseconds = 4;
  Try<BFloat16, float>(WithSums(12, 8, 9));
  EXPECT_TRUE(Fake().products.back().bias_gradient);
  Fake().column_sums_milliseconds = 2;
  Try<BFloat16, float>(WithSums(12, 8, 10));
  EXPECT_FALSE(Fake().products.back().bias_gradient);
  // Both problems are tuned now, so nothing is tried again.
  const int sums = Fake().column_sums;
  const size_t products = Fake().products.size();
  Try<BFloat16, float>(WithSums(12, 8, 9));
  EXPECT_TRUE(Fake().products.back().bias_gradient);
  EXPECT_EQ(Fake().products.back().algorithm, 1);
  Try<BFloat16, float>(WithSums(12, 8, 10));
  EXPECT_FALSE(Fake().products.back().bias_gradient);
  EXPECT_EQ(Fake().products.back().algorithm, 1);
  EXPECT_EQ(Fake().column_sums, sums + 1);
  EXPECT_EQ(Fake().products.size(), products + 2);
}

// Does what a fresh process does: tunes, and finds an algorithm. Exits with 0 if all is as
// expected.
void TuneAndExit(int heuristics, int checks, bool capturing = false) {
  TuneGemms(true);
  Fake().milliseconds = {5, 4, 3};
  Fake().capturing = capturing;
  Try<BFloat16, BFloat16>({12, 8, 11});
  const int plain = Fake().products.back().algorithm;
  Fake().bias_gradient_milliseconds = 9;  // so much that separate sums are faster
  Try<BFloat16, float>(WithSums(12, 8, 11));
  const auto& last = Fake().products.back();
  const auto ok = [](bool is, const char* what) {
    if (!is) std::fprintf(stderr, "%s\n", what);
    return is;
  };
  const bool all =
      static_cast<int>(ok(Fake().mistakes.empty() && !testing::Test::HasFailure(), "mistakes")) &
      static_cast<int>(ok(plain == 2 && last.algorithm == 2, "algorithm")) &
      static_cast<int>(ok(!last.bias_gradient && Fake().column_sums > 0, "epilogue")) &
      static_cast<int>(ok(Fake().heuristics == heuristics, "heuristics")) &
      static_cast<int>(ok(Fake().checks == checks, "checks"));
  std::exit(all ? 0 : 1);
}

// Each EXPECT_EXIT runs in a separate process, from the start of the test.
TEST(GemmTuningOfProcesses, IsDoneOnce) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const std::string folder = testing::TempDir() + "gemm_tuning_of_processes";
  const std::string path = folder + "/tuning.json";
  setenv("LATHE_TUNE_CACHE", path.c_str(), 1);
  if (!testing::internal::InDeathTestChild()) std::filesystem::remove_all(folder);
  EXPECT_EXIT(TuneAndExit(3, 0), testing::ExitedWithCode(0), "");
  const std::string system = "cuBLASLt 130100, Fake GPU, 7 multiprocessors";
  if (!testing::internal::InDeathTestChild()) {
    EXPECT_NE(ReadFile(path).find(system), std::string::npos);
  }
  EXPECT_EXIT(TuneAndExit(0, 2), testing::ExitedWithCode(0), "");
  // Known algorithms need nothing from the device, so they are found while work is recorded, too.
  EXPECT_EXIT(TuneAndExit(0, 2, true), testing::ExitedWithCode(0), "");
  // An algorithm that the library refuses is tuned again.
  EXPECT_EXIT((Fake().checks_fail = true, TuneAndExit(2, 2)), testing::ExitedWithCode(0), "");
  setenv("LATHE_TUNE_CACHE", "", 1);
}

TEST_F(Gemms, AreNotTunedWhileAStepIsRecorded) {
  Fake().milliseconds = {5, 4};
  TuneGemms(true);
  Fake().capturing = true;
  Try<float, float>({14, 7, 9});
  Try<float, float>({14, 7, 9});
  EXPECT_EQ(Fake().products.size(), 2u);
  EXPECT_EQ(Fake().heuristics, 1);
  EXPECT_EQ(Fake().products.back().algorithm, 0);
  Fake().capturing = false;
  Try<float, float>({14, 7, 9});
  EXPECT_EQ(Fake().products.back().algorithm, 1);
}

TEST_F(Gemms, TakeTheFirstWhereTuningHasNoMemory) {
  Try<float, float>({1, 1, 1});  // allocates the workspace
  Fake().milliseconds = {5, 4};
  DevicePool().ReleaseFreeSegments();
  Fake().free_memory = 0;
  TuneGemms(true);
  Try<float, float>({1500, 1500, 1});
  EXPECT_EQ(Fake().products.back().algorithm, 0);
}

}  // namespace
}  // namespace lathe::cuda
