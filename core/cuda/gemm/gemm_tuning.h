// A JSON file of the algorithms that tuning (GemmOptions::tune) has found to be the fastest. It
// outlives the process:
//
//   {"format": 1,
//    "systems": {"cuBLASLt 130100, NVIDIA H200, 132 multiprocessors": {
//      "NT 768x3072x4096, ...": {"algorithm": "0a00...", "milliseconds": 0.031}, ...}}}
//
// An algorithm is the 64 bytes of cublasLtMatmulAlgo_t, which programs may keep for the same
// version of the library. Attention is a separate system in the file (attention_dispatch.h). Its
// "algorithm" is null where Lathe's own kernels are faster than the library's.
//
// Any number of processes may use the file. Each adds its results to what the file holds at
// that time. If two write at once, the last one wins. Problems with the file are never errors. They
// count as an empty file, and one line on stderr reports the first.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "lathe/core/cuda/gemm/gemm_problem.h"

namespace lathe::cuda {

struct TunedGemm {
  // False: several smaller products, or Lathe's own attention, are faster.
  bool usable = true;
  std::array<uint64_t, 8> algorithm = {};  // cublasLtMatmulAlgo_t; meaningless if not usable
  float milliseconds = 0;                  // of one run

  bool operator==(const TunedGemm&) const = default;
};

// Returns a key like "NT 768x3072x4096, ...", with everything that the problem's algorithm depends
// on.
std::string TuningKey(const GemmProblem& problem);

// Returns LATHE_TUNE_CACHE if that is set, even to an empty string. Otherwise returns
// lathe/gemm_tuning.json in XDG_CACHE_HOME or in ~/.cache. If the path is empty, nothing is kept.
std::string TuningPath();

// The tuned algorithms of one system. Thread-safe.
class GemmTuning {
 public:
  // `system` names the library, its version and the GPU. The constructor doesn't read the file.
  GemmTuning(std::string path, std::string system);
  GemmTuning(const GemmTuning&) = delete;
  GemmTuning& operator=(const GemmTuning&) = delete;
  ~GemmTuning() { Save(); }

  // Returns true and sets *tuned if the problem is known.
  bool Find(const GemmProblem& problem, TunedGemm* tuned) {
    return Find(TuningKey(problem), tuned);
  }
  bool Find(const std::string& key, TunedGemm* tuned);
  // Adds an entry. Writes the file at once if the last second saw no write, else a later call or
  // Save does.
  void Add(const GemmProblem& problem, const TunedGemm& tuned) { Add(TuningKey(problem), tuned); }
  void Add(const std::string& key, const TunedGemm& tuned);
  void Save();

 private:
  using Algorithms = std::map<std::string, TunedGemm>;  // by TuningKey
  void SaveLocked();
  void Warn(const std::string& problem);

  const std::string path_, system_;
  std::mutex mutex_;
  bool read_ = false, warned_ = false;
  Algorithms known_;  // the file's and this process's
  Algorithms added_;  // not in the file yet
  std::chrono::steady_clock::time_point saved_;
};

}  // namespace lathe::cuda
