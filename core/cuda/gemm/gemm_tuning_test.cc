#include "lathe/core/cuda/gemm/gemm_tuning.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <vector>

#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"

namespace lathe::cuda {
namespace {

constexpr char kSystem[] = "cuBLASLt 130100, NVIDIA H200";

class GemmTuningTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "gemm_tuning_XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/a/b/tuning.json";  // the folders are created
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& contents) {
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
    WriteFileAtomically(path_, contents);
  }
  // Looks the problem up as another process would.
  bool Finds(const GemmProblem& problem, TunedGemm* tuned, const std::string& system = kSystem) {
    GemmTuning tuning(path_, system);
    return tuning.Find(problem, tuned);
  }
  std::string folder_, path_;
};

GemmProblem Problem(int64_t m) {
  return {.m = m, .n = 3, .k = 4, .lda = m, .ldb = 4, .ldd = m, .type = DType::kBF16};
}

TunedGemm Tuned(uint64_t seed) {
  TunedGemm tuned = {.milliseconds = 0.125f * static_cast<float>(seed)};
  for (size_t i = 0; i < 8; ++i) tuned.algorithm[i] = seed * 0x9E3779B97F4A7C15u * (i + 1);
  tuned.algorithm[7] = 0;
  return tuned;
}

TEST_F(GemmTuningTest, IsFoundByTheNextProcess) {
  TunedGemm found;
  {
    GemmTuning tuning(path_, kSystem);
    EXPECT_FALSE(tuning.Find(Problem(1), &found));
    tuning.Add(Problem(1), Tuned(1));
    tuning.Add(Problem(2), Tuned(2));  // written by the destructor
    tuning.Add(Problem(3), {.usable = false, .milliseconds = 3});
    ASSERT_TRUE(tuning.Find(Problem(2), &found));
    EXPECT_EQ(found, Tuned(2));
  }
  for (uint64_t m : {1, 2}) {
    ASSERT_TRUE(Finds(Problem(static_cast<int64_t>(m)), &found));
    EXPECT_EQ(found, Tuned(m));
  }
  ASSERT_TRUE(Finds(Problem(3), &found));
  EXPECT_FALSE(found.usable);
  EXPECT_EQ(found.milliseconds, 3);
  EXPECT_FALSE(Finds(Problem(4), &found));
  EXPECT_FALSE(Finds(Problem(1), &found, "cuBLASLt 130200, NVIDIA H200"));
}

TEST_F(GemmTuningTest, KeepsWhatOthersHaveWritten) {
  GemmTuning first(path_, kSystem), second(path_, kSystem), third(path_, "another system");
  TunedGemm found;
  EXPECT_FALSE(second.Find(Problem(1), &found));  // reads before the first writes
  first.Add(Problem(1), Tuned(1));
  second.Add(Problem(2), Tuned(2));
  third.Add(Problem(1), Tuned(3));
  first.Add(Problem(4), Tuned(4));
  first.Save();
  EXPECT_TRUE(Finds(Problem(1), &found) && found == Tuned(1));
  EXPECT_TRUE(Finds(Problem(2), &found) && found == Tuned(2));
  EXPECT_TRUE(Finds(Problem(4), &found) && found == Tuned(4));
  EXPECT_TRUE(Finds(Problem(1), &found, "another system") && found == Tuned(3));
}

TEST_F(GemmTuningTest, IsWholeWhileManyWrite) {
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < 10; ++i) {
        GemmTuning tuning(path_, kSystem);
        tuning.Add(Problem(10 * t + i), Tuned(7));
        tuning.Save();
        EXPECT_TRUE(nlohmann::json::accept(ReadFile(path_)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int found = 0;
  for (int64_t m = 0; m < 40; ++m) {
    TunedGemm tuned;
    found += Finds(Problem(m), &tuned);
  }
  EXPECT_GE(found, 10);  // writers at the same time may lose entries
}

TEST_F(GemmTuningTest, IgnoresDamagedFilesAndWritesThemAnew) {
  const std::string good =
      R"({"format":1,"systems":{"cuBLASLt 130100, NVIDIA H200":{"x":{"algorithm":null,)"
      R"("milliseconds":1}}}})";
  for (const std::string& damaged :
       {std::string(), std::string("{"), good.substr(0, good.size() - 3), std::string("[]"),
        std::string("null"), std::string(R"({"format":1})"),
        std::string(R"({"format":1,"systems":[]})"), std::string(1000000, '['),
        std::string("\xff\xfe\x00", 3)}) {
    SCOPED_TRACE(damaged.substr(0, 60));
    Write(damaged);
    TunedGemm found;
    testing::internal::CaptureStderr();
    GemmTuning tuning(path_, kSystem);
    EXPECT_FALSE(tuning.Find(Problem(1), &found));
    EXPECT_FALSE(tuning.Find(Problem(1), &found));
    tuning.Add(Problem(1), Tuned(1));
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_TRUE(said.starts_with("warning: " + path_ + ": ")) << said;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
    EXPECT_TRUE(Finds(Problem(1), &found));
  }
}

TEST_F(GemmTuningTest, PassesOverEntriesThatAreNone) {
  const std::string key = TuningKey(Problem(1)), hex(128, 'a');
  for (const nlohmann::json& entry :
       std::vector<nlohmann::json>{1,
                                   nullptr,
                                   nlohmann::json::object(),
                                   {{"algorithm", hex}},
                                   {{"milliseconds", 1}},
                                   {{"algorithm", hex.substr(1)}, {"milliseconds", 1}},
                                   {{"algorithm", "x" + hex.substr(1)}, {"milliseconds", 1}},
                                   {{"algorithm", 5}, {"milliseconds", 1}},
                                   {{"algorithm", hex}, {"milliseconds", "1"}},
                                   {{"algorithm", hex}, {"milliseconds", 1e300}}}) {
    SCOPED_TRACE(DumpJson(entry));
    Write(DumpJson(nlohmann::json({{"format", 1}, {"systems", {{kSystem, {{key, entry}}}}}})));
    TunedGemm found;
    EXPECT_FALSE(Finds(Problem(1), &found));
  }
  for (const nlohmann::json& system : std::vector<nlohmann::json>{1, nullptr, "x", {1, 2}}) {
    Write(DumpJson(nlohmann::json({{"format", 1}, {"systems", {{kSystem, system}}}})));
    GemmTuning tuning(path_, kSystem);
    TunedGemm found;
    EXPECT_FALSE(tuning.Find(Problem(1), &found));
    tuning.Add(Problem(1), Tuned(1));
    EXPECT_TRUE(Finds(Problem(1), &found));
  }
}

// A file of a later format counts neither as damaged nor as readable.
TEST_F(GemmTuningTest, PassesOverOtherFormats) {
  Write(R"({"format": 2, "systems": {}})");
  TunedGemm found;
  testing::internal::CaptureStderr();
  EXPECT_FALSE(Finds(Problem(1), &found));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(GemmTuningTest, APlaceThatCannotBeWrittenIsNoError) {
  for (const std::string& path :
       {folder_, std::string("/proc/no/tuning.json"), std::string("/dev/null/tuning.json")}) {
    testing::internal::CaptureStderr();
    {
      GemmTuning tuning(path, kSystem);
      TunedGemm found;
      EXPECT_FALSE(tuning.Find(Problem(1), &found));
      tuning.Add(Problem(1), Tuned(1));
      tuning.Add(Problem(2), Tuned(2));
      tuning.Save();
      EXPECT_TRUE(tuning.Find(Problem(1), &found)) << "it is known to this process";
    }
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
    EXPECT_TRUE(said.starts_with("warning: " + path + ": ")) << said;
  }
}

TEST_F(GemmTuningTest, KeepsNothingWithoutAPath) {
  testing::internal::CaptureStderr();
  {
    GemmTuning tuning("", kSystem);
    TunedGemm found;
    EXPECT_FALSE(tuning.Find(Problem(1), &found));
    tuning.Add(Problem(1), Tuned(1));
    EXPECT_TRUE(tuning.Find(Problem(1), &found));
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// Two problems have different keys if they differ in any field.
TEST_F(GemmTuningTest, KeysTellProblemsApart) {
  std::set<std::string> keys = {TuningKey({})};
  const auto add = [&](auto change) {
    GemmProblem problem;
    change(problem);
    EXPECT_TRUE(keys.insert(TuningKey(problem)).second) << TuningKey(problem);
  };
  add([](GemmProblem& p) { p.transpose_a = true; });
  add([](GemmProblem& p) { p.transpose_b = true; });
  add([](GemmProblem& p) { p.m = 1; });
  add([](GemmProblem& p) { p.n = 1; });
  add([](GemmProblem& p) { p.k = 1; });
  add([](GemmProblem& p) { p.lda = 1; });
  add([](GemmProblem& p) { p.ldb = 1; });
  add([](GemmProblem& p) { p.ldd = 1; });
  add([](GemmProblem& p) { p.type = DType::kBF16; });
  add([](GemmProblem& p) { p.type = DType::kF16; });
  add([](GemmProblem& p) { p.d_type = DType::kBF16; });
  add([](GemmProblem& p) { p.accumulate = true; });
  add([](GemmProblem& p) { p.batch = 2; });
  add([](GemmProblem& p) { p.epilogue = Epilogue::kBias; });
  add([](GemmProblem& p) { p.epilogue = Epilogue::kBiasGradient; });
  add([](GemmProblem& p) { p.a_alignment = 16; });
  add([](GemmProblem& p) { p.b_alignment = 16; });
  add([](GemmProblem& p) { p.d_alignment = 16; });
  add([](GemmProblem& p) { p.tf32 = true; });
  add([](GemmProblem& p) { p.deterministic = true; });
}

TEST_F(GemmTuningTest, LiesWhereTheEnvironmentSays) {
  unsetenv("LATHE_TUNE_CACHE");
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/home/ada", 1);
  EXPECT_EQ(TuningPath(), "/home/ada/.cache/lathe/gemm_tuning.json");
  setenv("XDG_CACHE_HOME", "/caches", 1);
  EXPECT_EQ(TuningPath(), "/caches/lathe/gemm_tuning.json");
  setenv("LATHE_TUNE_CACHE", "mine.json", 1);
  EXPECT_EQ(TuningPath(), "mine.json");
  setenv("LATHE_TUNE_CACHE", "", 1);
  EXPECT_EQ(TuningPath(), "");
  unsetenv("LATHE_TUNE_CACHE");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  EXPECT_EQ(TuningPath(), "");
}

}  // namespace
}  // namespace lathe::cuda
