#include "lathe/apps/lathe/estimate_memory.h"

#include <absl/status/status.h>

#include <algorithm>

#include "lathe/core/base/error.h"
#include "lathe/models/architecture.h"

namespace lathe {
namespace {

constexpr int64_t kFloat = 4;

constexpr int64_t kGpuWorkspace = int64_t{32} << 20;  // cuBLASLt's (core/cuda/gemm/gemm_plan.h)

}  // namespace

MemoryEstimate EstimateMemory(const SequenceClassifier& model, const MemoryOptions& options) {
  const Architecture& architecture = ArchitectureOf(model.config());
  if (architecture.pass_memory == nullptr) {
    throw Error(absl::StatusCode::kUnimplemented,
                model.config().path() + ": the memory of \"" + architecture.model_type +
                    "\" models can't be estimated yet",
                "train a few steps with finetune: train_results.json has peak_rss_bytes");
  }
  const PassMemory passes = architecture.pass_memory(model, options);
  MemoryEstimate estimate;
  estimate.weights = estimate.gradients = model.NumParameters() * kFloat;
  const int64_t n = options.shard_optimizer && !options.on_gpu ? options.num_processes : 1;
  estimate.moments = 2 * ((estimate.weights + n - 1) / n);
  estimate.checkpoint_copy = options.on_gpu ? 0 : estimate.weights + estimate.moments;
  estimate.workspace = options.on_gpu ? kGpuWorkspace : 0;
  estimate.low_precision = passes.low_precision;
  estimate.kept = passes.kept;
  estimate.temporary = passes.temporary;
  estimate.inference = passes.inference;
  if (options.num_processes > 1 && !options.on_gpu) {  // NCCL sums gradients in place
    // The rows of the word table that any process has used, unless these are most of the rows.
    const int64_t used = options.num_processes * options.batch_size * options.max_seq_length;
    estimate.exchange = std::min(used, passes.word_rows / 2) * passes.word_columns * kFloat;
  }
  return estimate;
}

}  // namespace lathe
