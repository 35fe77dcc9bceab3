// States of a whole loop on the disk.

#include <filesystem>
#include <iterator>
#include <ranges>
#include <span>
#include <system_error>

#include "lathe/core/base/file.h"
#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/core/checkpoint/state_file.h"
#include "lathe/core/json/json_number.h"
#include "lathe/core/json/json_text.h"
#include "lathe/core/safetensors/safetensors.h"
#include "lathe/core/version.h"
#include "lathe/distributed/accelerator_state.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr char kSchedulers[] = "/scheduler.h5", kLoaders[] = "/data_loader.h5",
               kScaler[] = "/scaler.h5";
// The numbers of objects, in a manifest's `about`.
constexpr char kModels[] = "models", kOptimizers[] = "optimizers",
               kRegistered[] = "registered_objects";
constexpr char kAutomatic[] = "checkpoint_";  // before the number of an automatic name

// Returns "model.safetensors", "model_1.safetensors" and so on.
std::string Numbered(const std::string& stem, size_t number, const std::string& ending) {
  return stem + (number == 0 ? "" : "_" + std::to_string(number)) + ending;
}

// The states of all objects of a kind in one, each under its number. They have no tensors.
template <typename Objects>
StateDict StatesOf(const Objects& objects) {
  StateDict all;
  for (size_t i = 0; i < objects.size(); ++i)
    all.values[std::to_string(i)] = objects[i]->StateDict().values;
  return all;
}

// Throws unless a state has as many objects as there are now.
void CheckCount(const nlohmann::json& saved, size_t now, const char* kind, const char* how) {
  Check(WholeNumber(saved, 0) == static_cast<int64_t>(now), "load_state", "the state has ",
        DumpJson(saved), " ", kind, "s but ", now, " are ", how);
}

template <typename Objects>
void LoadStates(const Objects& objects, const std::string& file, const char* kind) {
  const StateDict all = ReadStateFile(file);
  CheckCount(all.values.size(), objects.size(), kind, "prepared");
  for (size_t i = 0; i < objects.size(); ++i) {
    StateDict state;
    state.values = all.Get<nlohmann::json>("load_state", std::to_string(i));
    objects[i]->LoadStateDict(state);
  }
}

// Where a state lies: SaveState's argument, in two parts.
std::pair<std::string, std::string> Split(const std::string& dir) {
  const fs::path path = fs::path(dir).lexically_normal();
  const fs::path whole = path.has_filename() ? path : path.parent_path();
  Check(whole.has_filename(), "save_state", "\"", dir, "\" is no name of a folder");
  const std::string parent = whole.parent_path().string();
  return {parent.empty() ? "." : parent, whole.filename().string()};
}

std::string AutomaticParent(const ProjectConfiguration& project, const char* what) {
  Check(project.automatic_checkpoint_naming && !project.project_dir.empty(), what,
        "name a folder, or set automatic_checkpoint_naming and project_dir of "
        "AcceleratorOptions::project");
  return project.project_dir + "/checkpoints";
}

// Returns the first number above those of all automatic names, if the state `path` lies among them;
// 0 if it does not.
int64_t NextNumber(const ProjectConfiguration& project, const std::string& path) {
  if (!project.automatic_checkpoint_naming || project.project_dir.empty()) return 0;
  const std::string parent = AutomaticParent(project, "load_state");
  std::error_code code;
  if (!fs::equivalent(Split(path).first, parent, code)) return 0;
  const std::vector<NumberedFolder> states = ListNumberedFolders(parent, kAutomatic);
  return states.empty() ? 0 : states.back().number + 1;
}

// Throws if there are automatic names from `iteration` on: they belong to an earlier program.
void CheckAutomaticName(const std::string& parent, int64_t iteration) {
  const std::vector<NumberedFolder> states = ListNumberedFolders(parent, kAutomatic);
  if (states.empty() || states.back().number < iteration) return;
  throw InvalidArgument(
      "[save_state] " + states.back().path + " is there already, from an earlier program",
      "go on from it with LoadState(), or set iteration of AcceleratorOptions::project to " +
          std::to_string(states.back().number + 1) + ", or choose another project_dir");
}

// Returns why the folder holds no whole state; "" if it does.
std::string WhyNotWhole(const std::string& path) try {
  OpenCheckpoint(path);
  return "";
} catch (const Error& e) {
  return e.message();
}

}  // namespace

void Accelerator::TryTogether(const std::function<void()>& body) {
  if (!use_distributed()) return body();
  std::string problem, hint;
  try {
    body();
  } catch (const Error& e) {
    problem = e.message().empty() ? "unknown error" : e.message();
    hint = e.hint();
  } catch (const std::exception& e) {  // of a hook or of a registered object
    problem = *e.what() == 0 ? "unknown error" : e.what();
  } catch (...) {
    problem = "unknown error";
  }
  const std::vector<std::string> problems = GatherObject(problem), hints = GatherObject(hint);
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (problems[rank].empty()) continue;
    const std::string of = rank == 0 ? "" : "rank " + std::to_string(rank) + ": ";
    throw InvalidArgument(of + problems[rank], hints[rank]);
  }
}

std::string Accelerator::SaveState(const std::string& dir) {
  ProjectConfiguration& project = options_.project;
  const bool automatic = dir.empty();
  const auto [parent, name] = automatic ? std::pair(AutomaticParent(project, "save_state"),
                                                    kAutomatic + std::to_string(project.iteration))
                                        : Split(dir);
  std::string path = parent;
  path += "/" + name;
  TryTogether([&] {
    if (state_->HasOpenWindow()) {
      throw Error(absl::StatusCode::kFailedPrecondition,
                  "[save_state] gradients of batches that no step has used yet can't be saved",
                  "call SaveState where sync_gradients() is true, after Step or ZeroGrad of each "
                  "optimizer");
    }
  });
  std::optional<CheckpointDraft> draft;  // on the main process
  TryTogether([&, &folder = parent, &state_name = name] {
    if (!is_main_process()) return;
    std::error_code code;
    fs::create_directories(folder, code);
    if (code) throw FileError(folder, code.value());
    SweepDrafts(folder, automatic ? "" : state_name);
    if (automatic && !state_->knows_states) CheckAutomaticName(folder, project.iteration);
    // LoadState may have passed over a damaged state. The new one takes its place.
    if (fs::exists(path) && (!automatic || WhyNotWhole(path).empty()))
      throw InvalidArgument("[save_state] " + path + " is there already", "choose another name");
    draft.emplace(folder, state_name);
  });
  const std::string drafted = GatherObject(draft ? draft->path() : "")[0];
  TryTogether([&] {
    try {
      WriteState(drafted);
    } catch (const Error& e) {
      throw WithFolder(e, drafted, path);
    }
  });
  TryTogether([&] {
    if (!draft) return;
    draft->Commit({.step = state_->step,
                   .world_size = num_processes(),
                   .about = {{"lathe_version", kVersion},
                             {kModels, state_->models.size()},
                             {kOptimizers, state_->optimizers.size()},
                             {kRegistered, registered_.size()}}});
  });
  ++project.iteration;
  state_->knows_states = state_->knows_states || automatic;
  if (!automatic || !project.total_limit || !is_main_process()) return path;
  std::vector<NumberedFolder> states = ListNumberedFolders(parent, kAutomatic);
  // Links are left alone, and don't count, as with RotateCheckpoints.
  std::erase_if(
      states, [&](const NumberedFolder& s) { return s.is_link || s.number >= project.iteration; });
  const int64_t surplus = std::ssize(states) - std::max<int64_t>(1, *project.total_limit);
  for (int64_t i = 0; i < surplus; ++i) RemoveCheckpoint(states[static_cast<size_t>(i)].path);
  return path;
}

void Accelerator::WriteState(const std::string& folder) {
  State& s = *state_;
  for (size_t i = 0; i < s.optimizers.size(); ++i) {
    const bool parts = s.optimizers[i]->shards() != nullptr;
    if (!parts && !is_main_process()) continue;
    const std::string part = parts ? "-of-rank-" + std::to_string(process_index()) : "";
    const std::string file = folder + "/" + Numbered("optimizer", i, part + ".h5");
    WriteStateFile(file, s.optimizers[i]->StateDict());
    SyncFile(file);
  }
  if (!is_main_process()) return;
  for (const StateHook& hook : save_hooks_) hook(folder);
  for (size_t i = 0; i < s.models.size(); ++i) {
    std::vector<std::pair<std::string, Tensor>> tensors;
    for (const Parameter& p : s.models[i]->Parameters()) tensors.emplace_back(p.name, p.tensor);
    WriteSafetensors(folder + "/" + Numbered("model", i, ".safetensors"), tensors);
  }
  WriteStateFile(folder + kSchedulers, StatesOf(s.schedulers));
  WriteStateFile(folder + kLoaders, StatesOf(s.passes->loaders));
  if (scaler_ != nullptr) WriteStateFile(folder + kScaler, scaler_->StateDict());
  for (size_t i = 0; i < registered_.size(); ++i) {
    WriteStateFile(folder + "/custom_checkpoint_" + std::to_string(i) + ".h5",
                   registered_[i].state());
  }
}

std::string Accelerator::LoadState(const std::string& dir) {
  std::string path = dir;
  int64_t next = 0;  // the next automatic name's number; 0: it stays
  TryTogether([&] {
    if (!is_main_process()) return;
    if (!dir.empty()) {
      OpenCheckpoint(dir);
      next = NextNumber(options_.project, dir);
      return;
    }
    const std::string parent = AutomaticParent(options_.project, "load_state");
    const std::vector<NumberedFolder> states = ListNumberedFolders(parent, kAutomatic);
    for (const NumberedFolder& state : std::views::reverse(states)) {
      const std::string why_not = WhyNotWhole(state.path);
      if (why_not.empty()) {
        path = state.path;
        next = state.number + 1;
        return;
      }
      std::cerr << "note: left out " << why_not << std::endl;
    }
    if (!states.empty()) throw NotFound(parent + ": holds no whole state");
  });
  path = GatherObject(path)[0];
  group_->Broadcast(std::as_writable_bytes(std::span(&next, 1)), 0);
  state_->knows_states = state_->knows_states || dir.empty() || next > 0;
  if (path.empty()) return path;
  TryTogether([&] { ReadState(path); });
  if (next > 0) options_.project.iteration = next;
  return path;
}

void Accelerator::ReadState(const std::string& dir) {
  State& s = *state_;
  const CheckpointManifest manifest = ReadManifest(dir);
  for (const StateHook& hook : load_hooks_) hook(dir);
  CheckCount(manifest.about.value(kRegistered, nlohmann::json(0)), registered_.size(),
             "registered object", "registered");
  // Older states don't tell how many of these they have.
  if (manifest.about.contains(kModels))
    CheckCount(manifest.about[kModels], s.models.size(), "model", "prepared");
  if (manifest.about.contains(kOptimizers))
    CheckCount(manifest.about[kOptimizers], s.optimizers.size(), "optimizer", "prepared");
  for (size_t i = 0; i < s.models.size(); ++i) {
    const SafetensorsReader reader(dir + "/" + Numbered("model", i, ".safetensors"));
    for (const Parameter& p : s.models[i]->Parameters()) {
      Tensor tensor = p.tensor;
      reader.Read(p.name, tensor);
    }
  }
  LoadStates(s.schedulers, dir + kSchedulers, "scheduler");
  LoadStates(s.passes->loaders, dir + kLoaders, "loader");
  for (size_t i = 0; i < s.optimizers.size(); ++i) {
    StateDict state;
    const std::string whole = Numbered("optimizer", i, ".h5");
    const std::string part = Numbered("optimizer", i, "-of-rank-");
    for (const auto& [file, digest] : manifest.files) {
      if (file != whole && !file.starts_with(part)) continue;
      StateDict read = ReadStateFile(dir + "/" + file);
      if (state.values.empty()) state.values = std::move(read.values);
      std::move(read.tensors.begin(), read.tensors.end(), std::back_inserter(state.tensors));
    }
    s.optimizers[i]->LoadStateDict(state);
  }
  if (scaler_ != nullptr) scaler_->LoadStateDict(ReadStateFile(dir + kScaler));
  for (size_t i = 0; i < registered_.size(); ++i) {
    registered_[i].load(ReadStateFile(dir + "/custom_checkpoint_" + std::to_string(i) + ".h5"));
  }
  s.step = manifest.step;
  s.DropWindow();
  for (Optimizer* optimizer : s.optimizers) optimizer->ZeroGrad();
}

}  // namespace lathe
