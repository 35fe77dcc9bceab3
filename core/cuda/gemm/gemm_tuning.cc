#include "lathe/core/cuda/gemm/gemm_tuning.h"

#include <absl/strings/str_cat.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_nesting.h"
#include "lathe/core/json/json_text.h"

namespace lathe::cuda {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr size_t kMostKept = 1 << 14;  // most entries of a system, so that the file stays small
constexpr std::chrono::seconds kBetweenWrites{1};

std::string Hex(const std::array<uint64_t, 8>& words) {
  std::string hex;
  for (const uint64_t word : words) absl::StrAppend(&hex, absl::Hex(word, absl::kZeroPad16));
  return hex;
}

bool ParseHex(const std::string& hex, std::array<uint64_t, 8>* words) {
  if (hex.size() != 8 * 16 || hex.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return false;
  }
  for (size_t i = 0; i < 8; ++i) {
    (*words)[i] = std::strtoull(hex.substr(16 * i, 16).c_str(), nullptr, 16);
  }
  return true;
}

json ToJson(const TunedGemm& tuned) {
  json entry = {{"milliseconds", tuned.milliseconds}};
  entry["algorithm"] = tuned.usable ? json(Hex(tuned.algorithm)) : json();
  return entry;
}

// Returns nothing if `entry` isn't valid.
std::optional<TunedGemm> FromJson(const json& entry) {
  if (!entry.is_object()) return {};
  const auto algorithm = entry.find("algorithm"), time = entry.find("milliseconds");
  if (algorithm == entry.end() || time == entry.end() || !time->is_number()) return {};
  TunedGemm tuned = {.milliseconds = time->get<float>()};
  if (!std::isfinite(tuned.milliseconds)) return {};
  tuned.usable = !algorithm->is_null();
  if (!tuned.usable) return tuned;
  if (!algorithm->is_string() || !ParseHex(algorithm->get<std::string>(), &tuned.algorithm)) {
    return {};
  }
  return tuned;
}

// Returns the file's contents. They are empty if there is no file or it has another format. Throws
// Error if the file is damaged.
json ReadTuning(const std::string& path) {
  const json empty = {{"format", kFormat}, {"systems", json::object()}};
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return empty;
  const std::string text = ReadFile(path);
  CheckJsonNesting(text, path);
  const json tuning = ParseJsonOrDiscard(text);
  const auto format = tuning.is_object() ? tuning.find("format") : tuning.end();
  if (!tuning.is_object() || format == tuning.end() || !tuning.contains("systems") ||
      !tuning["systems"].is_object()) {
    throw InvalidArgument(path + ": this is not a file of tuned products");
  }
  return *format == kFormat ? tuning : empty;
}

}  // namespace

std::string TuningKey(const GemmProblem& p) {
  std::string key =
      absl::StrCat(p.transpose_a ? "T" : "N", p.transpose_b ? "T" : "N", " ", p.m, "x", p.n, "x",
                   p.k, ", strides ", p.lda, " ", p.ldb, " ", p.ldd, ", ", ToString(p.type), " to ",
                   ToString(p.d_type), ", aligned ", p.a_alignment, " ", p.b_alignment);
  absl::StrAppend(&key, " ", p.d_alignment);
  if (p.batch > 1) absl::StrAppend(&key, ", batch of ", p.batch);
  if (p.accumulate) key += ", accumulate";
  if (p.epilogue == Epilogue::kBias) key += ", bias";
  if (p.epilogue == Epilogue::kBiasGradient) key += ", bias gradient";
  if (p.tf32) key += ", tf32";
  if (p.deterministic) key += ", deterministic";
  return key;
}

std::string TuningPath() {
  if (const char* path = std::getenv("LATHE_TUNE_CACHE"); path != nullptr) return path;
  const char* caches = std::getenv("XDG_CACHE_HOME");
  if (caches != nullptr && *caches != '\0') {
    return std::string(caches) + "/lathe/gemm_tuning.json";
  }
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return "";
  return std::string(home) + "/.cache/lathe/gemm_tuning.json";
}

GemmTuning::GemmTuning(std::string path, std::string system)
    : path_(std::move(path)), system_(std::move(system)) {}

bool GemmTuning::Find(const std::string& key, TunedGemm* tuned) {
  const std::lock_guard lock(mutex_);
  if (!read_ && !path_.empty()) {
    try {
      const json tuning = ReadTuning(path_);
      const json algorithms = tuning["systems"].value(system_, json::object());
      for (const auto& [name, entry] : algorithms.items()) {
        if (const auto kept = FromJson(entry)) known_.insert({name, *kept});
      }
    } catch (const Error& e) {
      Warn(e.message() + "; Lathe tunes the products again");
    }
  }
  read_ = true;
  const auto found = known_.find(key);
  if (found == known_.end()) return false;
  *tuned = found->second;
  return true;
}

void GemmTuning::Add(const std::string& key, const TunedGemm& tuned) {
  const std::lock_guard lock(mutex_);
  known_[key] = added_[key] = tuned;
  if (std::chrono::steady_clock::now() - saved_ >= kBetweenWrites) SaveLocked();
}

void GemmTuning::Save() {
  const std::lock_guard lock(mutex_);
  SaveLocked();
}

void GemmTuning::SaveLocked() {
  if (added_.empty() || path_.empty()) return;
  const Algorithms added = std::move(added_);
  added_.clear();  // even if writing fails, so that nobody waits for a broken disk again and again
  try {
    json tuning;
    try {
      tuning = ReadTuning(path_);
    } catch (const Error& e) {
      Warn(e.message() + "; Lathe writes the file again");
      tuning = {{"format", kFormat}, {"systems", json::object()}};
    }
    json& algorithms = tuning["systems"][system_];
    if (!algorithms.is_object() || algorithms.size() >= kMostKept) algorithms = json::object();
    for (const auto& [key, tuned] : added) algorithms[key] = ToJson(tuned);
    std::error_code ignored;  // if it fails, the writing below gives the better error
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
    WriteFileAtomically(path_, DumpJson(tuning, 1) + "\n");
  } catch (const Error& e) {
    Warn(e.message() + "; the results of tuning are not saved");
  } catch (const json::exception& e) {  // not UTF-8
    Warn(path_ + ": " + e.what() + "; the results of tuning are not saved");
  }
  saved_ = std::chrono::steady_clock::now();
}

void GemmTuning::Warn(const std::string& problem) {
  if (!warned_) std::fprintf(stderr, "warning: %s\n", problem.c_str());
  warned_ = true;
}

}  // namespace lathe::cuda
