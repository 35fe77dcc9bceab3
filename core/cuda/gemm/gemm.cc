// Matrix products by cuBLASLt. core/gemm.h describes the products.
//
// The descriptors and the algorithm of a product form a plan. A plan is made when a problem is
// first seen, and then kept. Any thread may queue a product, one thread at a time.
//
// If possible, the sums of A's rows are the product's epilogue; with dW = dy^T x they are the
// gradient of a bias. A separate kernel must read A once more, 2 K M bytes in bfloat16, in up to
// three launches. For 4,096 tokens and 3,072 columns that is 25 MB. It takes 6 us of an H200's
// bandwidth, beside a product of 50 us.
//
// Adding a bias is an epilogue, too. The library has none for some products, such as those of one
// row or one column. A separate kernel then adds the bias, which rounds once more in bfloat16 and
// float16.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "lathe/core/base/log.h"
#include "lathe/core/base/round_up.h"
#include "lathe/core/cpu/activation.h"
#include "lathe/core/cuda/gemm/gemm_plan.h"
#include "lathe/core/cuda/gemm/gemm_problem.h"
#include "lathe/core/cuda/gemm/gemm_tuning.h"
#include "lathe/core/cuda/runtime/device.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/gemm_kernels.h"
#include "lathe/core/kernels/tensor_kernels.h"

namespace lathe::cuda {
namespace {

constexpr size_t kMostPlans = 1 << 14;  // bounds memory if batches have ever new lengths
constexpr int kBiasAlignment = 16;      // bytes; less is unsafe in epilogues, also for gradients

// Computes args.a_sums with a separate kernel.
void SumRowsOfA(const GemmArgs& args) {
  if (args.beta == 0) {
    DeviceKernels<TensorKernels>().fill(args.a_sums, DType::kF32, 0, args.M);
  }
  const auto& kernels = DeviceKernels<cpu::ActivationKernels>();
  const auto sum = [&]<typename T>(const cpu::ActivationKernels::ForType<T>& of) {
    of.column_sums(args.a_sums, static_cast<const T*>(args.a), args.K, args.M, args.lda);
  };
  if (args.type == DType::kF32) return sum(kernels.f32);
  return args.type == DType::kBF16 ? sum(kernels.bf16) : sum(kernels.f16);
}

// Adds args.bias to C.
void AddBias(const GemmArgs& args) {
  DeviceKernels<TensorKernels>().add_row(args.c, args.c_type, args.bias, args.M, args.N, args.ldc);
}

class Products {
 public:
  static Products& Get() {
    static Products* products = new Products;
    return *products;
  }

  void Run(const GemmArgs& args) {
    const GemmOptions options = GetGemmOptions();
    ToColumnMajor(args, options);  // throws if args are invalid
    const std::lock_guard lock(mutex_);
    if (args.batch > 1 && RunBatch(args, options)) return;
    for (int64_t i = 0; i < args.batch; ++i) RunOne(ProductOfBatch(args, i), options);
  }

 private:
  void RunOne(GemmArgs args, const GemmOptions& options) {
    if (args.a_sums != nullptr) {
      if (RunWithSums(args, options)) return;
      SumRowsOfA(args);
      args.a_sums = nullptr;
    }
    if (args.M == 0 || args.N == 0) return;
    if (args.K == 0 && args.beta != 0) return;
    const int64_t bias_bytes = BiasBytes(args);
    const int64_t zero_bytes = args.K == 0 ? std::max(args.M, args.N) * SizeOf(args.type) : 0;
    char* const workspace =
        static_cast<char*>(Workspace(kWorkspaceBytes + bias_bytes + zero_bytes));
    if (args.K == 0) {  // an empty sum: a column times a row of zeros
      void* zeros = workspace + kWorkspaceBytes + bias_bytes;
      CheckCuda("cudaMemset", cudaMemsetAsync(zeros, 0, static_cast<size_t>(zero_bytes), Stream()));
      args.a = args.b = zeros;
      args.transpose_a = args.transpose_b = false;
      args.K = args.lda = 1;
      args.ldb = args.N;
    }
    const Operands operands = OperandsOf(args, workspace);
    const auto plan = Find(ToColumnMajor(args, options), operands, options);
    if (args.bias == nullptr) return plan->Run(operands);
    if (plan->usable) CopyBias(args, operands);
    if (Works(*plan, args, options, operands)) return;
    GemmArgs apart = args;
    apart.bias = nullptr;
    Find(ToColumnMajor(apart, options), operands, options)->Run(operands);
    AddBias(args);
  }

  // Runs the plan if it is usable. Returns true if it has run. A plan that the library refuses
  // becomes unusable for good. The exception is recorded work, for which the library may refuse
  // what it takes otherwise.
  static bool Works(Plan& plan, const GemmArgs& args, const GemmOptions& options,
                    const Operands& operands) {
    if (!plan.usable || plan.Try(operands)) return plan.usable;
    if (!IsCapturing()) {
      plan.usable = false;
      LogDebug(absl::StrCat("cuBLASLt refuses ", Describe(ToColumnMajor(args, options)),
                            ": Lathe computes it in parts"));
    }
    return false;
  }

  // Runs a whole batch as one product. Returns false without doing anything if that is impossible,
  // or was measured to be slower than one product after the other.
  bool RunBatch(const GemmArgs& args, const GemmOptions& options) {
    if (args.M == 0 || args.N == 0 || args.K == 0) return false;
    if (args.a_sums != nullptr && !MaySum(args, options)) return false;
    char* const workspace = static_cast<char*>(Workspace(kWorkspaceBytes + BiasBytes(args)));
    const Operands operands = OperandsOf(args, workspace);
    const auto plan = Find(ToColumnMajor(args, options), operands, options, [&](Plan& tuned) {
      const auto one = FindWithSums(ProductOfBatch(args, 0), operands, options);
      if (!one->usable) return;
      const float apart = static_cast<float>(args.batch) * one->milliseconds;
      tuned.usable = tuned.usable && !(tuned.milliseconds > apart);
    });
    if (plan->usable) CopyBias(args, operands);
    return Works(*plan, args, options, operands);
  }

  // Runs the product with the sums of A's rows as its epilogue. Returns false without doing
  // anything if that is impossible or was measured to be slower.
  bool RunWithSums(const GemmArgs& args, const GemmOptions& options) {
    if (args.M == 0 || args.N == 0 || args.K == 0 || !MaySum(args, options)) return false;
    const Operands operands = OperandsOf(args, static_cast<char*>(Workspace(kWorkspaceBytes)));
    const auto plan = FindWithSums(args, operands, options);
    return Works(*plan, args, options, operands);
  }

  // Returns true if cuBLASLt's epilogue may sum A's rows. It can't add to earlier sums, and the
  // order of its additions isn't documented.
  static bool MaySum(const GemmArgs& args, const GemmOptions& options) {
    return args.beta == 0 && !options.deterministic && AlignmentOf(args.a_sums) >= kBiasAlignment &&
           args.bias_stride * SizeOf(DType::kF32) % kBiasAlignment == 0;
  }

  // Returns the plan of one product. If the product sums A's rows and is tuned now, the plan is
  // usable only if it is faster than separate kernels.
  std::shared_ptr<Plan> FindWithSums(const GemmArgs& args, const Operands& operands,
                                     const GemmOptions& options) {
    return Find(ToColumnMajor(args, options), operands, options, [&](Plan& tuned) {
      if (args.a_sums == nullptr || !tuned.usable) return;
      Stopwatch watch;
      SumRowsOfA(args);
      watch.Start();
      for (int run = 0; run < kTimedRuns; ++run) SumRowsOfA(args);
      const float sums = watch.Stop() / kTimedRuns;
      GemmArgs apart = args;
      apart.a_sums = nullptr;
      const float product = Find(ToColumnMajor(apart, options), operands, options)->milliseconds;
      tuned.usable = !(tuned.milliseconds > product + sums);
    });
  }

  // A bias is converted to C's type and copied to addresses that all algorithms can read. The copy
  // has BiasBytes and lies behind the workspace. CopyBias makes it, but only for a product that
  // will read it.
  static bool CopiesBias(const GemmArgs& args) {
    return args.bias != nullptr &&
           (args.c_type != DType::kF32 || AlignmentOf(args.bias) < kBiasAlignment ||
            args.bias_stride * SizeOf(DType::kF32) % kBiasAlignment != 0);
  }
  static int64_t BiasBytes(const GemmArgs& args) {
    return CopiesBias(args) ? args.batch * RoundUp(args.N * SizeOf(args.c_type), 256) : 0;
  }
  static Operands OperandsOf(const GemmArgs& args, char* workspace) {
    Operands operands = {args.b,          args.a,
                         args.c,          args.a_sums != nullptr ? args.a_sums : args.bias,
                         workspace,       args.b_stride,
                         args.a_stride,   args.c_stride,
                         args.bias_stride};
    if (!CopiesBias(args)) return operands;
    operands.bias = workspace + kWorkspaceBytes;
    operands.bias_stride = BiasBytes(args) / args.batch / SizeOf(args.c_type);
    return operands;
  }
  static void CopyBias(const GemmArgs& args, const Operands& operands) {
    if (!CopiesBias(args)) return;
    char* const copies = static_cast<char*>(operands.workspace) + kWorkspaceBytes;
    const int64_t bytes = BiasBytes(args) / args.batch;
    for (int64_t i = 0; i < args.batch; ++i) {
      DeviceKernels<TensorKernels>().convert(copies + i * bytes, args.c_type,
                                             args.bias + i * args.bias_stride, DType::kF32, args.N);
    }
  }

  // Returns the problem's plan. If the plan is made by timing, calls `when_tuned` before keeping
  // it.
  std::shared_ptr<Plan> Find(
      const GemmProblem& problem, const Operands& operands, const GemmOptions& options,
      const std::function<void(Plan&)>& when_tuned = [](Plan&) {}) {
    const bool wants_tuned = options.tune && !options.deterministic;
    const auto found = plans_.find(problem);
    if (found != plans_.end() && (found->second->tuned || !wants_tuned)) return found->second;
    const bool tune = wants_tuned && !IsCapturing();
    auto plan = std::make_shared<Plan>(problem);
    TunedGemm known;
    if (wants_tuned && Tuning().Find(problem, &known) && plan->Restore(known, operands)) {
      // Neither asks the library's heuristics nor times anything.
    } else if (tune) {
      plan->Tune(operands);
      when_tuned(*plan);
      if (!plan->usable || std::isfinite(plan->milliseconds)) {
        Tuning().Add(problem, plan->Tuned());
      }
    } else if (found != plans_.end()) {
      return found->second;
    } else {
      plan->Choose(operands);
    }
    // This plan isn't kept, because the library may refuse in recorded work what it takes
    // otherwise.
    if (!plan->usable && IsCapturing()) return plan;
    if (plans_.size() >= kMostPlans) plans_.clear();
    return plans_[problem] = std::move(plan);
  }

  // Made when tuning is first asked for.
  static GemmTuning& Tuning() {
    static GemmTuning* const tuning = [] {
      static GemmTuning* made = new GemmTuning(TuningPath(), TunedSystem());
      std::atexit([] { made->Save(); });
      return made;
    }();
    return *tuning;
  }

  std::mutex mutex_;
  std::unordered_map<GemmProblem, std::shared_ptr<Plan>, GemmProblemHash> plans_;
};

const GemmKernels table = {[](const GemmArgs& args) { Products::Get().Run(args); }};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
