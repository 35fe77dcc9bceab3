#include "lathe/train/support/output_dir.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/train/card/model_card.h"
#include "lathe/train/support/interrupt.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

void ThrowIf(const std::error_code& code, const std::string& path) {
  if (code) throw FileError(path, code.value());
}

Error NotWritable(const Error& e) {
  return Error(e.code(), e.message(),
               OptionName("output_dir") + " must be a folder that you may write to");
}

// The files of one model. Replace removes them together. A loader may prefer another model's file
// beside the new ones (tokenizer.json wins over vocab.txt). Old results would be taken for the new
// model's.
constexpr std::string_view kModelFiles[] = {"tokenizer.json",
                                            "tokenizer_config.json",
                                            "special_tokens_map.json",
                                            "added_tokens.json",
                                            "vocab.txt",
                                            "spiece.model",
                                            "sentencepiece.bpe.model",
                                            "spm.model",
                                            "sentencepiece.model",
                                            "vocab.json",
                                            "merges.txt",
                                            "model.safetensors",
                                            "model.safetensors.index.json",
                                            "pytorch_model.bin",
                                            "config.json",
                                            "data_columns.json",
                                            "train_results.json",
                                            "eval_results.json",
                                            "eval_report.json",
                                            "eval_errors.tsv",
                                            "all_results.json",
                                            "predict_results.tsv",
                                            "report.html",
                                            "trainer_state.json"};

constexpr std::string_view kWrittenFiles[] = {
    "model.safetensors",  "config.json",         "data_columns.json", "trainer_state.json",
    "train_results.json", "eval_results.json",   "eval_report.json",  "eval_errors.tsv",
    "all_results.json",   "predict_results.tsv", "report.html"};

void CheckNoFolder(const std::string& path) {
  if (!fs::is_directory(path)) return;
  throw InvalidArgument(path + ": is a folder but must be a file of the model",
                        "rename it or choose another " + OptionName("output_dir"));
}

bool IsModelFile(const std::string& name) {
  if (std::find(std::begin(kModelFiles), std::end(kModelFiles), name) != std::end(kModelFiles))
    return true;
  int end = -1;  // stays -1 unless the whole pattern matches
  std::sscanf(name.c_str(), "model-%*[0-9]-of-%*[0-9].safetensors%n", &end);
  return end == static_cast<int>(name.size());
}

// Returns a path inside `parent` where nothing lies. A killed program that had the same number may
// have left a model there (OutputDir::Replace).
std::string UnusedPath(const std::string& parent) {
  const std::string first = parent + "/.partial." + std::to_string(getpid());
  std::string path = first;
  std::error_code code;
  for (int i = 2; fs::exists(path, code); ++i) path = first + "." + std::to_string(i);
  return path;
}

// A folder inside `parent` that is removed at the end, whatever happens.
class ScratchDir {
 public:
  explicit ScratchDir(const std::string& parent) : path_(UnusedPath(parent)) {
    std::error_code code;
    fs::create_directory(path_, code);
    ThrowIf(code, parent);
  }
  ~ScratchDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A model without this file does not load, here or in Transformers.
constexpr std::string_view kConfig = "config.json";

std::vector<std::string> NamesIn(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) names.push_back(entry.path().filename());
  return names;
}

// Returns true if the folder is empty, or a job has left only its mark and its lock there.
bool HoldsNothing(const std::string& dir) {
  std::error_code code;
  fs::directory_iterator at(dir, code);
  ThrowIf(code, dir);
  for (const fs::directory_iterator end; at != end; at.increment(code)) {
    const std::string name = at->path().filename();
    if (name != kJobMark && name != kFolderLock) return false;
  }
  ThrowIf(code, dir);
  return true;
}

// Renames that are undone unless Commit is called.
class Renames {
 public:
  Renames() = default;
  ~Renames() {
    if (committed_) return;
    for (auto move = done_.rbegin(); move != done_.rend(); ++move)
      std::rename(move->second.c_str(), move->first.c_str());
  }
  Renames(const Renames&) = delete;
  Renames& operator=(const Renames&) = delete;

  // Renames `from` to `to`. An error names `shown`.
  void Add(const std::string& from, const std::string& to, const std::string& shown) {
    if (std::rename(from.c_str(), to.c_str()) != 0) throw FileError(shown, errno);
    done_.emplace_back(from, to);
  }
  void Commit() { committed_ = true; }

 private:
  std::vector<std::pair<std::string, std::string>> done_;
  bool committed_ = false;
};

}  // namespace

OutputDir::OutputDir(std::string path, bool allow_existing) : path_(std::move(path)) {
  while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();
  std::error_code code;
  const fs::file_status status = fs::status(path_, code);
  if (fs::exists(status)) {
    if (!fs::is_directory(status)) {
      throw InvalidArgument(path_ + ": output_dir is not a folder", "choose another name");
    }
    if (!allow_existing && !HoldsNothing(path_)) {
      throw UsageError(path_ + ": output_dir is not empty",
                       "choose another folder or set " + OptionName("overwrite_output_dir"));
    }
    for (const std::string_view name : kWrittenFiles) CheckNoFolder(File(std::string(name)));
  } else {
    fs::path made = fs::absolute(path_);
    while (made.has_parent_path() && made != made.parent_path() && !fs::exists(made)) {
      outermost_made_ = made;
      made = made.parent_path();
    }
    fs::create_directories(path_, code);
    if (code) throw NotWritable(FileError(path_, code.value()));
  }
  // Checks now that the folder can be written to, not after hours of training.
  try {
    ScratchDir probe(path_);
  } catch (const Error& e) {
    if (!outermost_made_.empty()) fs::remove_all(outermost_made_, code);
    throw NotWritable(e);
  }
}

OutputDir::~OutputDir() {
  if (outermost_made_.empty()) return;
  std::error_code code;
  for (fs::path dir = fs::absolute(path_); fs::remove(dir, code) && dir != outermost_made_;) {
    dir = dir.parent_path();  // remove fails at the first folder that isn't empty
  }
}

void OutputDir::Replace(const std::function<void(const std::string&)>& write) {
  const InterruptShield shield;
  ScratchDir scratch(path_);
  const std::string new_dir = scratch.path() + "/new", old_dir = scratch.path() + "/old";
  fs::create_directory(new_dir);
  fs::create_directory(old_dir);
  try {
    write(new_dir);
  } catch (const Error& e) {
    // The user doesn't know the scratch folder, so name the file where it would have been.
    throw WithFolder(e, new_dir, path_);
  }

  std::vector<std::string> arriving = NamesIn(new_dir), leaving;
  for (const std::string& name : NamesIn(path_)) {
    const bool replaced = std::find(arriving.begin(), arriving.end(), name) != arriving.end();
    if (!fs::is_directory(File(name))) {
      const bool is_card = name == kModelCard && HasUneditedCard(File(name));
      if (replaced || is_card || IsModelFile(name)) leaving.push_back(name);
    } else if (replaced) {
      CheckNoFolder(File(name));
    }
  }
  const auto is_config = [](const std::string& name) { return name == kConfig; };
  std::partition(leaving.begin(), leaving.end(), is_config);
  std::partition(arriving.begin(), arriving.end(), std::not_fn(is_config));

  Renames renames;
  for (const std::string& name : leaving) {
    renames.Add(File(name), old_dir + "/" + name, File(name));
    if (is_config(name)) SyncFolder(path_);
  }
  for (const std::string& name : arriving) {
    if (is_config(name)) SyncFolder(path_);
    renames.Add(new_dir + "/" + name, File(name), File(name));
  }
  SyncFolder(path_);
  renames.Commit();
}

void OutputDir::Write(const std::string& name, const std::string& contents) {
  WriteFileAtomically(File(name), contents);
}

void OutputDir::WriteJson(const std::string& name, const nlohmann::json& json, int indent) {
  // Texts may come from anywhere. A byte that is not UTF-8 must not cost the results.
  Write(name, DumpJson(json, indent) + "\n");
}

}  // namespace lathe
