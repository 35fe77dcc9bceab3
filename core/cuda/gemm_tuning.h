// The algorithms that tuning (GemmOptions::tune) has found to be the fastest, in a JSON file that
// outlives the process:
//
//   {"format": 1,
//    "systems": {"cuBLASLt 130100, NVIDIA H200": {
//      "NT 768x3072x4096, ...": {"algorithm": "0a00...", "milliseconds": 0.031}, ...}}}
//
// An algorithm is cublasLtMatmulAlgo_t's 64 bytes, which NVIDIA lets one keep for the same version
// of the library. Attention is a system of its own there (attention_dispatch.h), whose "algorithm"
// is null where the own kernels are faster than the library's. Any number of processes may use the
// file: each writes what it has found beside what is there by then, and where two write at once,
// the last one wins. Problems with the file are never errors: then it is as if there were none, and
// a line on stderr says so, once.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "lathe/core/cuda/gemm_problem.h"

namespace lathe::cuda {

struct TunedGemm {
  bool usable = true;                      // false: faster without the problem's epilogue
  std::array<uint64_t, 8> algorithm = {};  // cublasLtMatmulAlgo_t; nothing of worth if not usable
  float milliseconds = 0;                  // of one run

  bool operator==(const TunedGemm&) const = default;
};

// "NT 768x3072x4096 ...": all that the problem's algorithm depends on.
std::string TuningKey(const GemmProblem& problem);

// LATHE_TUNE_CACHE, if it is set, even to nothing; else lathe/gemm_tuning.json in XDG_CACHE_HOME or
// ~/.cache. Empty: nothing is kept.
std::string TuningPath();

// Thread-safe.
class GemmTuning {
 public:
  // system: library, its version and the GPU. Nothing is read yet.
  GemmTuning(std::string path, std::string system);
  GemmTuning(const GemmTuning&) = delete;
  GemmTuning& operator=(const GemmTuning&) = delete;
  ~GemmTuning() { Save(); }

  // Whether something is known of the problem; then *tuned is that.
  bool Find(const GemmProblem& problem, TunedGemm* tuned) {
    return Find(TuningKey(problem), tuned);
  }
  bool Find(const std::string& key, TunedGemm* tuned);
  // Keeps it. The file is written now if it wasn't in the last second, else by a later call or
  // Save.
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
