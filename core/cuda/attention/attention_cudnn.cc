// Attention by cuDNN, behind the interface of attention_library.h.
//
// A plan is compiled for its problem when it is built, which takes up to a second.
// attention_dispatch.cc rounds up the number and length of sequences first, so that a training run
// needs few plans.
#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <array>
#include <limits>

#include "lathe/core/base/error.h"
#include "lathe/core/cuda/attention/attention_cudnn_graph.h"
#include "lathe/core/cuda/attention/attention_library.h"
#include "lathe/core/cuda/runtime/device.h"
#include "lathe/core/device_libraries.h"

namespace lathe::cuda {
namespace {

class CudnnPlan : public AttentionPlan {
 public:
  CudnnPlan(const CudnnLibrary& cudnn, cudnnHandle_t handle, const AttentionProblem& problem)
      : cudnn_(cudnn), handle_(handle), problem_(problem), graph_(cudnn) {
    const CudnnTarget target = {.handle = handle};
    AddAttention(graph_, problem);
    graph_.Finalize(target);
    plan_ = graph_.FirstPlan(target);
    engine_bytes_ = (graph_.WorkspaceBytes(plan_) + 255) / 256 * 256;
    if (problem.backward) {
      dots_bytes_ =
          problem.batch * problem.heads * problem.max_seqlen * static_cast<int64_t>(sizeof(float));
    }
    keep_ = static_cast<float>(KeepProbability(problem));
    keep_scale_ = static_cast<float>(1 / KeepProbability(problem));
  }

  int64_t workspace_bytes() const override { return engine_bytes_ + dots_bytes_; }

  void Run(const AttentionOperands& o) override {
    scale_ = o.scale;
    struct Entry {
      int64_t id;
      const void* at;
    };
    std::vector<Entry> entries = {{kQ, o.q},
                                  {kK, o.k},
                                  {kV, o.v},
                                  {kOut, o.out},
                                  {kLse, o.lse},
                                  {kLengths, o.lengths},
                                  {kRowOffsets, o.row_offsets},
                                  {kLseOffsets, o.lse_offsets},
                                  {kScale, &scale_},
                                  {kNoScore, &no_score_}};
    char* const dots = static_cast<char*>(o.workspace) + engine_bytes_;
    if (problem_.backward) {
      entries.insert(
          entries.end(),
          {{kDOut, o.dout}, {kDQ, o.dq}, {kDK, o.dk}, {kDV, o.dv}, {kDots, dots}, {kKeep, &keep_}});
    }
    if (problem_.threshold > 0) {
      entries.insert(entries.end(),
                     {{kSeed, o.seed}, {kOffset, o.offset}, {kKeepScale, &keep_scale_}});
    }
    std::vector<int64_t> ids;
    std::vector<const void*> pointers;
    for (const Entry& entry : entries) {
      ids.push_back(entry.id);
      pointers.push_back(entry.at);
    }
    CudnnDescriptors pack(cudnn_);
    const CudnnDescriptors::Descriptor variants = pack.New(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.Set(variants, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, std::ssize(ids),
             ids.data());
    pack.Set(variants, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
             std::ssize(pointers), pointers.data());
    pack.Set(variants, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, o.workspace);
    pack.Finalize(variants);
    const cudnnStatus_t status = cudnn_.BackendExecute(handle_, plan_, variants);
    if (status == CUDNN_STATUS_SUCCESS) return;
    std::array<char, 512> more = {};
    cudnn_.GetLastErrorString(more.data(), more.size() - 1);
    throw Error(absl::StatusCode::kInternal,
                absl::StrCat("[cuda] cudnnBackendExecute: ", cudnn_.GetErrorString(status), " for ",
                             Describe(problem_), ": ", more.data()),
                "set LATHE_ATTENTION=own to compute attention without cuDNN");
  }

 private:
  const CudnnLibrary& cudnn_;
  const cudnnHandle_t handle_;
  const AttentionProblem problem_;
  CudnnGraph graph_;
  CudnnGraph::Descriptor plan_ = nullptr;
  int64_t engine_bytes_ = 0, dots_bytes_ = 0;
  // Scalars that cuDNN reads when work is queued or recorded.
  float scale_ = 1, keep_ = 1, keep_scale_ = 1;
  const float no_score_ = -std::numeric_limits<float>::infinity();
};

class CudnnAttention : public AttentionLibrary {
 public:
  explicit CudnnAttention(const CudnnLibrary& cudnn) : cudnn_(cudnn) {
    const auto check = [&](const char* call, cudnnStatus_t status) {
      if (status == CUDNN_STATUS_SUCCESS) return;
      throw Error(absl::StatusCode::kInternal,
                  absl::StrCat("[cuda] ", call, ": ", cudnn_.GetErrorString(status)));
    };
    const cudaStream_t stream = Stream();  // makes the device current in this thread
    check("cudnnCreate", cudnn_.Create(&handle_));
    check("cudnnSetStream", cudnn_.SetStream(handle_, stream));
  }

  std::string Name() const override { return "cuDNN " + CudnnVersion(cudnn_.GetVersion()); }
  std::unique_ptr<AttentionPlan> Build(const AttentionProblem& problem, std::string* why) override {
    try {
      return std::make_unique<CudnnPlan>(cudnn_, handle_, problem);
    } catch (const Error& e) {
      *why = Name() + ": " + WithoutTag(e.message());
      return nullptr;
    }
  }

 private:
  const CudnnLibrary& cudnn_;
  cudnnHandle_t handle_ = nullptr;
};

[[maybe_unused]] const bool registered = RegisterDeviceLibrary([] {
  try {
    const CudnnLibrary& cudnn = Cudnn();
    return absl::StrCat("cuDNN ", CudnnVersion(cudnn.GetVersion()), " (", cudnn.file, ")");
  } catch (const Error& e) {
    return "no cuDNN: " + WithoutTag(e.message());
  }
});

}  // namespace

AttentionLibrary* FindAttentionLibrary(std::string* why) {
  struct Found {
    std::unique_ptr<AttentionLibrary> library;
    std::string why;
  };
  // Never destroyed, since recorded work may outlive static variables.
  static const Found* const found = [] {
    auto* made = new Found;
    try {
      made->library = std::make_unique<CudnnAttention>(Cudnn());
    } catch (const Error& e) {
      made->why = WithoutTag(e.message());
    }
    return made;
  }();
  *why = found->why;
  return found->library.get();
}

}  // namespace lathe::cuda
