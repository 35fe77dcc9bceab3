#include "lathe/core/cuda/attention/attention_dispatch.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "lathe/core/attention_counts.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/gemm_options.h"
#include "lathe/core/base/log.h"
#include "lathe/core/base/round_up.h"
#include "lathe/core/cuda/attention/attention.h"
#include "lathe/core/cuda/attention/attention_offsets.h"
#include "lathe/core/cuda/gemm/gemm_tuning.h"
#include "lathe/core/cuda/runtime/device.h"
#include "lathe/core/cuda/runtime/stopwatch.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/shape_kernels.h"
#include "lathe/core/version.h"

namespace lathe::cuda {
namespace {

constexpr size_t kMostPlans = 64;  // plans are kept, since recorded work may use them
constexpr int64_t kMostWorkspace = int64_t{1} << 30;
constexpr int64_t kLengthStep = 128;  // plans' lengths are multiples of the engines' tile
constexpr int kTimed = 3;             // timed runs of each

int64_t PowerOfTwo(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
}

bool IsAligned(const AttentionOperands& o) {
  const std::initializer_list<const void*> all = {o.q, o.k, o.v, o.out, o.dout, o.dq, o.dk, o.dv};
  return std::all_of(all.begin(), all.end(), [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  });
}

// Returns why no library may serve the call, or an empty string if one may.
std::string WhyNotLibrary(const AttentionCall& call) {
  const cpu::AttentionArgs& args = call.args;
  if (HasTerms(args)) return "only Lathe's own kernels compute windows and relative terms";
  if (call.dtype == DType::kF32) return "only Lathe's own kernels compute float32";
  if (args.first_query_only) return "only Lathe's own kernels compute one query per sequence";
  if (args.head_dim % 8 != 0) {
    return absl::StrCat("heads have ", args.head_dim, " columns, which is not a multiple of 8");
  }
  if (args.head_dim > 256) {
    return absl::StrCat("heads have ", args.head_dim, " columns, more than 256");
  }
  if (!IsAligned(call.operands)) return "the matrices don't lie at multiples of 16 bytes";
  if (args.q_rows * args.heads * args.head_dim > std::numeric_limits<int32_t>::max()) {
    return absl::StrCat("a matrix has ", args.q_rows, " rows of ", args.heads * args.head_dim,
                        " columns, more elements than int32 can count");
  }
  return "";
}

AttentionProblem ProblemOf(const AttentionCall& call) {
  const cpu::AttentionArgs& args = call.args;
  return {.backward = call.backward,
          .dtype = call.dtype,
          .batch = PowerOfTwo(args.batch),
          .heads = args.heads,
          .head_dim = args.head_dim,
          .max_seqlen = RoundUp(args.max_seqlen, kLengthStep),
          .threshold = args.mask.threshold};
}

// Zeroes the rows from *first on, up to row `rows`.
void ClearRows(std::initializer_list<void*> matrices, int64_t rows, int64_t row_bytes,
               const int32_t* first) {
  ClearRowsArgs args = {.rows = rows, .row_bytes = row_bytes, .first = first};
  std::copy(matrices.begin(), matrices.end(), args.matrices);
  DeviceKernels<ShapeKernels>().clear_rows(args);
}

// Queues everything that the library's pass consists of.
void RunLibrary(const AttentionCall& call, const AttentionProblem& problem, AttentionPlan& plan) {
  const cpu::AttentionArgs& args = call.args;
  const auto room = [](int64_t count, int64_t size) { return RoundUp(count * size, 256); };
  const int64_t plan_bytes = room(plan.workspace_bytes(), 1), counts = room(problem.batch + 1, 4);
  char* at = static_cast<char*>(Workspace(plan_bytes + 3 * counts + 256));
  const auto take = [&at](int64_t bytes) { return std::exchange(at, at + bytes); };

  AttentionOperands o = call.operands;
  o.scale = ScaleOf(args);
  o.workspace = take(plan_bytes);
  AttentionOffsets offsets = {
      .cu_seqlens = args.cu_seqlens,
      .sample_ids = args.sample_ids,
      .device_step = args.mask.device_step,
      .sequences = static_cast<int32_t>(args.batch),
      .batch = static_cast<int32_t>(problem.batch),
      .max_seqlen = static_cast<int32_t>(problem.max_seqlen),
      .rows = args.q_rows,
      .heads = args.heads,
      .width = args.heads * args.head_dim,
      .key0 = args.mask.key0,
      .key1 = args.mask.key1,
      .step = args.mask.step,
      .lengths = reinterpret_cast<int32_t*>(take(counts)),
      .row_offsets = reinterpret_cast<int32_t*>(take(counts)),
      .lse_offsets = reinterpret_cast<int32_t*>(take(counts)),
  };
  if (problem.threshold > 0) {
    offsets.seed = reinterpret_cast<int64_t*>(take(256));
    offsets.offset = offsets.seed + 1;
  }
  FillAttentionOffsets(offsets);
  o.lengths = offsets.lengths;
  o.row_offsets = offsets.row_offsets;
  o.lse_offsets = offsets.lse_offsets;
  o.seed = offsets.seed;
  o.offset = offsets.offset;

  // The library works on whole tiles of rows, so it reads and writes behind the last sequence. No
  // NaN may be there. Hence the rows of lse that nobody has written are cleared before the backward
  // pass, and the rows of the results after either pass.
  const int32_t* tokens = args.cu_seqlens + args.batch;
  const int64_t row_bytes = args.heads * args.head_dim * SizeOf(call.dtype);
  if (call.backward) {
    ClearRows({o.lse}, args.q_rows, args.heads * SizeOf(DType::kF32), tokens);
  }
  plan.Run(o);
  if (call.backward) {
    ClearRows({o.dq, o.dk, o.dv}, args.q_rows, row_bytes, tokens);
  } else {
    ClearRows({o.out}, args.q_rows, row_bytes, tokens);
  }
}

// Returns a key like "forward bfloat16, 32 sequences of up to 128 tokens, 12 heads of 64, 4096
// rows".
std::string MeasuredKey(const AttentionCall& call, const AttentionProblem& problem) {
  return absl::StrCat(Describe(problem), ", ", PowerOfTwo(call.args.q_rows), " rows");
}

std::string DeviceName() {
  int device = 0;
  cudaDeviceProp properties;
  CheckCuda("cudaGetDevice", cudaGetDevice(&device));
  CheckCuda("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, device));
  return properties.name;
}

class Dispatch {
 public:
  static Dispatch& Get() {
    static Dispatch* dispatch = new Dispatch;
    return *dispatch;
  }

  void Run(const AttentionCall& call) {
    const WantedAttention wanted = GetWantedAttention();
    const GemmOptions options = GetGemmOptions();
    const bool measures = wanted == WantedAttention::kAuto && options.tune &&
                          !options.deterministic && call.args.mask.threshold == 0;
    if (!(measures || wanted == WantedAttention::kCudnn) || !RunByLibrary(call, measures)) {
      call.own();
      CountOwnAttention();
    }
  }

 private:
  // Queues the library's pass. Returns false without doing so if the library can't serve the call
  // or was measured to be slower.
  bool RunByLibrary(const AttentionCall& call, bool measures) {
    const std::lock_guard lock(mutex_);
    std::string why = WhyNotLibrary(call);
    const AttentionProblem problem = ProblemOf(call);
    AttentionPlan* plan = why.empty() ? FindPlan(problem, &why) : nullptr;
    if (plan == nullptr) {
      Tell(why);
      return false;
    }
    if (measures && !IsFaster(call, problem, *plan)) return false;
    RunLibrary(call, problem, *plan);
    CountLibraryAttention();
    return true;
  }

  // The caller holds mutex_, here and in all private functions below.
  static void Tell(const std::string& why) {
    if (NoteWhyNotLibrary(why)) LogDebug("attention runs Lathe's own kernels: " + why);
  }

  AttentionPlan* FindPlan(const AttentionProblem& problem, std::string* why) {
    const auto found = plans_.find(problem);
    if (found != plans_.end()) {
      *why = found->second.why;
      return found->second.plan.get();
    }
    if (IsCapturing()) {
      *why = "no plan was made for " + Describe(problem) + " before work was recorded";
      return nullptr;
    }
    if (plans_.size() >= kMostPlans) {
      *why = absl::StrCat("there are already ", kMostPlans, " plans for other shapes");
      return nullptr;
    }
    Entry& entry = plans_[problem];
    AttentionLibrary* library = FindAttentionLibrary(&entry.why);
    if (library != nullptr) entry.plan = library->Build(problem, &entry.why);
    if (entry.plan != nullptr && entry.plan->workspace_bytes() > kMostWorkspace) {
      entry.why = absl::StrCat(Describe(problem), " would need ",
                               entry.plan->workspace_bytes() >> 20, " MiB of workspace");
      entry.plan = nullptr;
    }
    *why = entry.why;
    return entry.plan.get();
  }

  bool IsFaster(const AttentionCall& call, const AttentionProblem& problem, AttentionPlan& plan) {
    const std::string key = MeasuredKey(call, problem);
    TunedGemm known;
    if (Tuning().Find(key, &known)) return known.usable;
    if (IsCapturing()) return false;
    const auto time = [](const std::function<void()>& run) {
      run();
      Stopwatch watch;
      watch.Start();
      for (int i = 0; i < kTimed; ++i) run();
      return watch.Stop() / kTimed;
    };
    const float own = time(call.own);
    try {
      const float library = time([&] { RunLibrary(call, problem, plan); });
      known = {.usable = library < own, .milliseconds = std::min(library, own)};
      LogDebug(absl::StrCat("attention, ", key, ": Lathe's own kernels take ", own,
                            " ms, the library's take ", library, " ms"));
    } catch (const Error& e) {
      known = {.usable = false, .milliseconds = own};
      Tell(e.message());
    }
    Tuning().Add(key, known);
    return known.usable;
  }

  // Made when the first call is measured.
  GemmTuning& Tuning() {
    static GemmTuning* const tuning = [] {
      std::string unused;
      static GemmTuning* made = new GemmTuning(
          TuningPath(), absl::StrCat("attention, ", FindAttentionLibrary(&unused)->Name(),
                                     ", Lathe ", kVersion, ", ", DeviceName()));
      std::atexit([] { made->Save(); });
      return made;
    }();
    return *tuning;
  }

  struct Entry {
    std::unique_ptr<AttentionPlan> plan;
    std::string why;  // why there is no plan
  };

  std::mutex mutex_;
  std::map<AttentionProblem, Entry> plans_;
};

}  // namespace

WantedAttention GetWantedAttention() {
  const char* wanted = std::getenv("LATHE_ATTENTION");
  const std::string_view name = wanted == nullptr ? "" : wanted;
  if (name.empty() || name == "auto") return WantedAttention::kAuto;
  if (name == "own") return WantedAttention::kOwn;
  if (name == "plain") return WantedAttention::kPlain;
  if (name == "cudnn") return WantedAttention::kCudnn;
  throw InvalidArgument("[attention] LATHE_ATTENTION must be auto, own, plain or cudnn but is \"" +
                        std::string(name) + "\"");
}

void RunAttention(const AttentionCall& call) { Dispatch::Get().Run(call); }

}  // namespace lathe::cuda
