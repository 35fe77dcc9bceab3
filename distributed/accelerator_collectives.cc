// What the Accelerator does besides training: collectives, waits and trackers.
#include <nlohmann/json.hpp>
#include <span>

#include "lathe/distributed/accelerator_state.h"

namespace lathe {
namespace {

// The number of waits outside of collectives so far in this process, over all Accelerators. It
// gives each wait a key of its own.
int64_t num_waits = 0;

}  // namespace

Tensor Accelerator::Gather(const Tensor& tensor) {
  if (use_distributed()) return lathe::Gather(*group_, tensor);
  return tensor.ndim() == 0 ? tensor.Detach().Reshape({1}) : tensor;
}

Tensor Accelerator::GatherForMetrics(const Tensor& tensor) {
  const State::Entry* pass = state_->pass();
  Check(pass != nullptr, "gather_for_metrics", "call it inside a loop over a prepared loader");
  Check(tensor.defined() && tensor.ndim() > 0 && tensor.dim(0) == pass->batch->num_samples(),
        "gather_for_metrics", "expected one row for each of the batch's ",
        pass->batch->num_samples(), " samples");
  if (!use_distributed()) return tensor;
  state_->CheckOneBatch(
      "gather_for_metrics",
      "Gather the rows, and the batch's indices, which say to which samples they belong",
      [](const State::Entry& a, const State::Entry& b) {
        return a.batch->sample_ids == b.batch->sample_ids;
      });
  const int64_t own = pass->batch->share.stand_in ? 0 : tensor.dim(0);
  const Tensor rows = lathe::Gather(*group_, tensor.Slice(0, own)).To(Device{});
  const Tensor places =
      lathe::Gather(*group_, Tensor::FromVector(pass->batch->sample_ids).Slice(0, own));
  Tensor result = Tensor::Empty(rows.shape(), rows.dtype());
  for (int64_t i = 0; i < places.numel(); ++i) {
    const int64_t place = places.data<int32_t>()[i];
    result.Slice(place, place + 1).CopyFrom(rows.Slice(i, i + 1));
  }
  return result.To(tensor.device());
}

void Accelerator::WaitWithoutTimeout() {
  if (!use_distributed()) return;
  const std::string key = "wait/" + std::to_string(num_waits++) + "/";
  const auto of = [&](int rank) { return key + std::to_string(rank); };
  if (!is_main_process()) {
    group_->PostMessage(of(process_index()), "");
    group_->AwaitMessage(of(0), 0);
    return;
  }
  for (int rank = 1; rank < num_processes(); ++rank) group_->AwaitMessage(of(rank), rank);
  group_->PostMessage(of(0), "");
}

bool Accelerator::CheckTrigger() {
  int64_t raised = std::exchange(trigger_, false) ? 1 : 0;
  group_->AllReduce(std::span(&raised, 1), ReduceOp::kMax);
  return raised != 0;
}

Accelerator::Scope Accelerator::TurnOf(int first, std::string key) {
  const int exceptions = std::uncaught_exceptions();
  if (process_index() != first) {
    group_->AwaitMessage(key, first);
    return Scope(nullptr);
  }
  return Scope([group = group_, key = std::move(key), exceptions] {
    // After an exception the work is not done and this process will end, so the others must not go
    // on.
    if (std::uncaught_exceptions() > exceptions) return;
    try {
      group->PostMessage(key, "");
    } catch (const Error&) {
      // The ranks that wait notice the error by themselves.
    }
  });
}

Accelerator::Scope Accelerator::MainProcessFirst() {
  return TurnOf(0, "turn/" + std::to_string(num_waits++));
}

Accelerator::Scope Accelerator::LocalMainProcessFirst() {
  const std::string key = "turn/" + std::to_string(num_waits++);
  return TurnOf(local_main_, key + "/of/" + std::to_string(local_main_));
}

// --- trackers ---

void Accelerator::InitTrackers(const std::string& project) {
  InitTrackers(project, nlohmann::json::object());
}

void Accelerator::InitTrackers(const std::string& project, const nlohmann::json& config) {
  Check(config.is_object() || config.is_null(), "init_trackers", "config must be an object but is ",
        config.type_name());
  Check(state_->trackers.empty(), "init_trackers",
        "trackers run already; EndTraining must come between two calls");
  if (!is_main_process()) return;
  const ProjectConfiguration& folders = options_.project;
  const std::string parent =
      folders.logging_dir.empty() ? folders.project_dir : folders.logging_dir;
  std::vector<std::shared_ptr<Tracker>> trackers =
      MakeTrackers(options_.log_with, project.empty() ? parent : parent + "/" + project);
  trackers.insert(trackers.end(), options_.trackers.begin(), options_.trackers.end());
  state_->trackers = TrackerList(std::move(trackers),
                                 [](const std::string& line) { std::cerr << line << std::endl; });
  state_->trackers.Start(config.is_null() ? nlohmann::json::object() : config);
}

void Accelerator::Log(const nlohmann::json& values, std::optional<int64_t> step) {
  Check(values.is_object(), "log", "values must be an object but is ", values.type_name());
  state_->trackers.Log(values, step);
}

void Accelerator::EndTraining() {
  state_->trackers.Finish();
  WaitForEveryone();
}

}  // namespace lathe
