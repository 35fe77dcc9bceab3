// Runs of finetune with --dataset_cache, beside runs with the data in memory.
#pragma once

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/apps/testing/cli_testing.h"

namespace lathe {

inline constexpr const char* kParts[] = {"training", "validation", "test"};

// The notes of a run that tokenizes a part of the data, and of one that finds it.
inline std::string MadeNote(const std::string& part) {
  return "the tokenized " + part + " data are kept in ";
}
inline std::string FoundNote(const std::string& part) {
  return "the " + part + " data were tokenized before and are read from ";
}

inline bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class DatasetCacheTest : public LaunchedTest {
 protected:
  // Trains 30 steps into the folder `out`, with the cache or with the data in memory.
  RunResult Run(const std::string& out, const std::string& cache,
                const std::vector<std::string>& more = {}, const RunOptions& options = {}) const {
    std::vector<std::string> args =
        TrainingArgs(out, {"--num_threads", "1", "--max_steps", "30", "--dataset_cache", cache});
    args.insert(args.end(), more.begin(), more.end());
    return RunProgram("finetune", args, options);
  }
  std::string Model(const std::string& out) const { return Read(out + "/model.safetensors"); }
  // Expects two runs to have the same results, whatever they were asked for.
  void ExpectSameResults(const std::string& a, const std::string& b) const {
    for (const char* name : {"model.safetensors", "predict_results.tsv"}) {
      ASSERT_EQ(Exists(a + "/" + name), Exists(b + "/" + name)) << name;
      if (!Exists(a + "/" + name)) continue;
      EXPECT_EQ(Read(a + "/" + name), Read(b + "/" + name)) << name;
    }
    ASSERT_EQ(Exists(a + "/eval_results.json"), Exists(b + "/eval_results.json"));
    if (Exists(a + "/eval_results.json")) {
      EXPECT_EQ(Metrics(a), Metrics(b));
    }
  }
  // Returns what the last evaluation found, without its times.
  nlohmann::json Metrics(const std::string& out) const {
    nlohmann::json metrics = ReadJson(out + "/eval_results.json");
    EXPECT_TRUE(metrics.contains("eval_loss"));
    for (const char* name : {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second"})
      metrics.erase(name);
    return metrics;
  }
  // Returns how many files of the folder `cache` begin with this word.
  int64_t Count(const std::string& prefix) const {
    const std::vector<std::string> names = FilesIn("cache");
    return std::count_if(names.begin(), names.end(), [&](const std::string& name) {
      return std::filesystem::path(name).filename().string().starts_with(prefix);
    });
  }
  std::vector<std::string> FilesIn(const std::string& folder) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(Path(folder)))
      names.push_back(entry.path().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  void Expect(const RunResult& run, const std::string& note) const {
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_TRUE(Contains(run.out, note)) << run.out;
    EXPECT_EQ(run.err, ExpectedNotes("no"));
  }
};

}  // namespace lathe
