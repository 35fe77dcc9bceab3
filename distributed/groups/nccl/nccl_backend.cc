// The part of NCCL's groups that is in every program, whether it links the groups or not.
#include <absl/status/status.h>

#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/distributed/groups/nccl/nccl_group.h"

namespace lathe {
namespace {

const NcclBackend*& TheBackend() {
  static const NcclBackend* backend = nullptr;
  return backend;
}

}  // namespace

bool RegisterNcclBackend(const NcclBackend& backend) {
  TheBackend() = &backend;
  return true;
}

const NcclBackend& RequireNccl() {
  if (TheBackend() != nullptr) return *TheBackend();
  throw Error(absl::StatusCode::kFailedPrecondition,
              "[nccl] this program was built without CUDA and NCCL",
              "install both, set CUDA_PATH to CUDA's folder and build again, or compute on the CPU "
              "(device cpu, backend gloo)");
}

RankDevice DescribeRankDevice(int local_rank) try {
  return RequireNccl().describe(local_rank);
} catch (const Error& e) {
  return {.problem = e.message(), .hint = e.hint()};
}

std::shared_ptr<NcclGroup> MakeNcclGroup(int rank, int size, int local_rank,
                                         std::shared_ptr<StoreServer> server,
                                         std::shared_ptr<Store> store,
                                         std::chrono::milliseconds timeout) {
  Check(local_rank >= 0, "nccl", "the local rank must be at least 0 but is ", local_rank);
  return RequireNccl().make(rank, size, local_rank, std::move(server), std::move(store), timeout);
}

}  // namespace lathe
