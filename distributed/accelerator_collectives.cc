// Collectives and waits of the Accelerator besides training.
#include <algorithm>
#include <span>
#include <utility>

#include "lathe/distributed/accelerator.h"
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

Tensor Accelerator::Reduce(const Tensor& tensor, const std::string& reduction) {
  return lathe::Reduce(*group_, tensor, reduction);
}

Tensor Accelerator::PadAcrossProcesses(const Tensor& tensor, int dim, double pad_index,
                                       bool pad_first) {
  return lathe::PadAcrossProcesses(*group_, tensor, dim, pad_index, pad_first);
}

std::vector<std::string> Accelerator::GatherObject(const std::string& object) {
  return GatherStrings(*group_, object);
}

Tensor Accelerator::GatherForMetrics(const Tensor& tensor) {
  const LoaderPasses::Entry* pass = state_->pass();
  Check(pass != nullptr && pass->batch != nullptr, "gather_for_metrics",
        "call it inside a loop over a prepared loader");
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

Accelerator::Part Accelerator::PartOf(int64_t n) const {
  const int64_t world = num_processes(), rank = process_index();
  const int64_t each = n / world, extra = n % world;
  const int64_t begin = rank * each + std::min(rank, extra);
  return {begin, begin + each + (rank < extra ? 1 : 0), each + (extra > 0 ? 1 : 0)};
}

void Accelerator::WaitForEveryone() { group_->Barrier(); }

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

int Accelerator::local_main_process_index() const { return state_->local_main; }

bool Accelerator::CheckTrigger() {
  int64_t raised = std::exchange(trigger_, false) ? 1 : 0;
  group_->AllReduce(std::span(&raised, 1), ReduceOp::kMax);
  return raised != 0;
}

Accelerator::ProcessTurn::ProcessTurn(ProcessGroup& group, int first, std::string key)
    : group_(group), is_first_(group.rank() == first), key_(std::move(key)) {
  if (!is_first_) group_.AwaitMessage(key_, first);
}

Accelerator::ProcessTurn::~ProcessTurn() {
  // After an exception the work is not done and this process will end, so the others must not go
  // on.
  if (!is_first_ || std::uncaught_exceptions() > exceptions_) return;
  try {
    group_.PostMessage(key_, "");
  } catch (const Error&) {
    // The ranks that wait notice the error by themselves.
  }
}

Accelerator::ProcessTurn Accelerator::MainProcessFirst() {
  return ProcessTurn(*group_, 0, "turn/" + std::to_string(num_waits++));
}

Accelerator::ProcessTurn Accelerator::LocalMainProcessFirst() {
  return ProcessTurn(
      *group_, state_->local_main,
      "turn/" + std::to_string(num_waits++) + "/of/" + std::to_string(state_->local_main));
}

}  // namespace lathe
