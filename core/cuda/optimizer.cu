// Flat passes over parameters, gradients and moments. DeviceOptimizerKernels in
// core/kernels/optimizer_kernels.h describes them.
#include <algorithm>

#include "lathe/core/cuda/chunks.h"
#include "lathe/core/cuda/dispatch.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/cuda/pack.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/optimizer_kernels.h"
#include "lathe/core/kernels/update_rules.h"

namespace lathe::cuda {
namespace {

constexpr unsigned kNaNBits = 0x7fc00000u;

// Decides whether the step is taken, and updates the steps and the scaler's state. One thread calls
// this. Returns true if parameters change.
__device__ inline bool TakeStep(const SkippableStep& scaled, int64_t advance) {
  if (scaled.steps == nullptr) return true;
  DeviceStepCounts& steps = *scaled.steps;
  const bool held_back = scaled.clip != nullptr && !IsFinite(*scaled.clip);
  if (scaled.scaler == nullptr) {
    steps.taken += !held_back;
    return !held_back;
  }
  ScalerState& scaler = *scaled.scaler;
  if (steps.skipped == 0) steps.advanced += advance;
  const bool taken = steps.found_inf == 0;
  steps.skipped = !taken;
  steps.taken += taken && !held_back;
  // If several optimizers step after the same backward pass, one skipped step is enough.
  scaler.skipped = !taken || (scaler.stepped != 0 && scaler.skipped != 0);
  scaler.stepped = 1;
  scaler.num_skipped += !taken;
  *scaled.factor = !taken                   ? __uint_as_float(kNaNBits)
                   : scaled.clip == nullptr ? 1.0f
                                            : *scaled.clip;
  return taken && !held_back;
}

// Runs as one block.
__global__ void RatesKernel(DeviceRates* rates, int64_t* counters, const DeviceRange* ranges,
                            int64_t count, RateRule rule, const RateValues* values,
                            const double* lrs, SkippableStep scaled) {
  __shared__ bool taken;
  const int64_t num_rates = values->num_rates;
  if (threadIdx.x == 0) taken = TakeStep(scaled, values->advance);
  __syncthreads();
  if (!taken) return;
  const int64_t place =
      scaled.scaler == nullptr ? 0 : min(scaled.steps->advanced - values->advanced, num_rates - 1);
  for (int64_t i = threadIdx.x; i < count; i += kBlock) {
    const DeviceRange range = ranges[i];
    const int64_t steps = ++counters[range.counter];
    const double lr = lrs[range.group * num_rates + place], t = static_cast<double>(steps);
    DeviceRates now;
    if (rule.kind == RateKind::kAdamW) {
      now.decay = static_cast<float>(1 - lr * range.weight_decay);
      now.step_size = static_cast<float>(lr / (1 - pow(rule.beta1, t)));
      now.inverse_bias2 = static_cast<float>(1 / sqrt(1 - pow(rule.beta2, t)));
    } else if (rule.kind == RateKind::kSgd) {
      now.decay = static_cast<float>(range.weight_decay);
      now.step_size = static_cast<float>(lr);
      now.take = static_cast<float>(steps == 1 ? 1 : 1 - rule.dampening);
    } else {
      now = update_rules::RatesOf(rule, lr, range.weight_decay, t);
    }
    rates[i] = now;
  }
}

void Rates(DeviceRates* rates, int64_t* counters, const DeviceRange* ranges, int64_t count,
           const RateRule& rule, const RateValues* values, const double* lrs,
           const SkippableStep& scaled) {
  LATHE_LAUNCH(RatesKernel, dim3(1), kBlock, 0, rates, counters, ranges, count, rule, values, lrs,
               scaled);
}

template <typename Narrow>
__global__ void AdamWKernel(float* p, float* m, float* v, const float* g, const DeviceRange* ranges,
                            const DeviceRates* all_rates, int64_t count, AdamWConstants c,
                            const float* clip) {
  const float scale = clip == nullptr ? 1.0f : *clip;
  if (!IsFinite(scale)) return;
  const Chunk chunk = FindChunk(ranges, count, blockIdx.x);
  const DeviceRange range = ranges[chunk.range];
  const DeviceRates rates = all_rates[chunk.range];
  p += chunk.begin, m += chunk.begin, v += chunk.begin, g += chunk.begin;
  Narrow* narrow = range.narrow == nullptr
                       ? nullptr
                       : static_cast<Narrow*>(range.narrow) + (chunk.begin - range.begin);
  const bool aligned = AlignedTo(16, p) && AlignedTo(16, m) && AlignedTo(16, v) &&
                       AlignedTo(16, g) && AlignedTo(8, narrow);
  ForChunk(chunk.n, aligned, [&](int64_t i, auto width) {
    constexpr int N = decltype(width)::value;
    const auto grads = LoadPack<N>(g + i);
    auto values = LoadPack<N>(p + i), means = LoadPack<N>(m + i), squares = LoadPack<N>(v + i);
    Pack<Narrow, N> rounded;
    for (int k = 0; k < N; ++k) {
      const float grad = grads.v[k] * scale;
      const float mean = means.v[k] + c.one_minus_beta1 * (grad - means.v[k]);
      const float square = c.beta2 * squares.v[k] + c.one_minus_beta2 * grad * grad;
      const float value = values.v[k] * rates.decay -
                          rates.step_size * mean / (sqrtf(square) * rates.inverse_bias2 + c.eps);
      means.v[k] = mean;
      squares.v[k] = square;
      values.v[k] = value;
      Store(rounded.v[k], value);
    }
    StorePack(p + i, values);
    StorePack(m + i, means);
    StorePack(v + i, squares);
    if (narrow != nullptr) StorePack(narrow + i, rounded);
  });
}

template <typename Narrow>
__global__ void SgdKernel(float* p, float* buffer, const float* g, const DeviceRange* ranges,
                          const DeviceRates* all_rates, int64_t count, SgdConstants c,
                          const float* clip) {
  const float scale = clip == nullptr ? 1.0f : *clip;
  if (!IsFinite(scale)) return;
  const Chunk chunk = FindChunk(ranges, count, blockIdx.x);
  const DeviceRange range = ranges[chunk.range];
  const DeviceRates rates = all_rates[chunk.range];
  const bool momentum = buffer != nullptr;
  p += chunk.begin, g += chunk.begin;
  if (momentum) buffer += chunk.begin;
  Narrow* narrow = range.narrow == nullptr
                       ? nullptr
                       : static_cast<Narrow*>(range.narrow) + (chunk.begin - range.begin);
  const bool aligned =
      AlignedTo(16, p) && AlignedTo(16, g) && AlignedTo(16, buffer) && AlignedTo(8, narrow);
  const float of_gradient = !momentum || c.nesterov ? 1.0f : 0.0f;
  const float of_buffer = c.nesterov ? c.momentum : 1.0f;
  ForChunk(chunk.n, aligned, [&](int64_t i, auto width) {
    constexpr int N = decltype(width)::value;
    const auto grads = LoadPack<N>(g + i);
    auto values = LoadPack<N>(p + i);
    Pack<float, N> buffers = {};
    if (momentum) buffers = LoadPack<N>(buffer + i);
    Pack<Narrow, N> rounded;
    for (int k = 0; k < N; ++k) {
      const float d = grads.v[k] * scale + rates.decay * values.v[k];
      float step = of_gradient * d;
      if (momentum) {
        buffers.v[k] = c.momentum * buffers.v[k] + rates.take * d;
        step += of_buffer * buffers.v[k];
      }
      values.v[k] -= rates.step_size * step;
      Store(rounded.v[k], values.v[k]);
    }
    StorePack(p + i, values);
    if (momentum) StorePack(buffer + i, buffers);
    if (narrow != nullptr) StorePack(narrow + i, rounded);
  });
}

void AdamW(float* p, float* m, float* v, const float* g, const DeviceRange* ranges,
           const DeviceRates* rates, int64_t count, int64_t chunks, DType narrow_type,
           const AdamWConstants& constants, const float* clip) {
  if (chunks == 0) return;
  DispatchNarrow("AdamW", narrow_type, [&](auto tag) {
    LATHE_LAUNCH(AdamWKernel<decltype(tag)>, dim3(static_cast<unsigned>(chunks)), kBlock, 0, p, m,
                 v, g, ranges, rates, count, constants, clip);
  });
}

void Sgd(float* p, float* buffer, const float* g, const DeviceRange* ranges,
         const DeviceRates* rates, int64_t count, int64_t chunks, DType narrow_type,
         const SgdConstants& constants, const float* clip) {
  if (chunks == 0) return;
  DispatchNarrow("SGD", narrow_type, [&](auto tag) {
    LATHE_LAUNCH(SgdKernel<decltype(tag)>, dim3(static_cast<unsigned>(chunks)), kBlock, 0, p,
                 buffer, g, ranges, rates, count, constants, clip);
  });
}

// --- gradients as a whole ---

constexpr int64_t kMaxPartials = 2048;

dim3 NormGrid(int64_t n) {
  return dim3(static_cast<unsigned>(
      std::clamp<int64_t>((n + kBlock * 16 - 1) / (kBlock * 16), 1, kMaxPartials)));
}

__global__ void SquareSums(double* partials, const float* g, int64_t n, bool aligned) {
  __shared__ double scratch[32];
  double sum = 0;
  const int64_t packs = aligned ? n / 4 : 0;
  for (int64_t i = GlobalThread(); i < packs; i += NumThreads()) {
    const Pack<float, 4> pack = reinterpret_cast<const Pack<float, 4>*>(g)[i];
    for (int k = 0; k < 4; ++k) sum += static_cast<double>(pack.v[k]) * pack.v[k];
  }
  for (int64_t i = packs * 4 + GlobalThread(); i < n; i += NumThreads()) {
    sum += static_cast<double>(g[i]) * g[i];
  }
  sum = BlockSum(sum, scratch);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void FinishNorm(float* result, const double* partials, int64_t n) {
  __shared__ double scratch[32];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kBlock) sum += partials[i];
  sum = BlockSum(sum, scratch);
  if (threadIdx.x == 0) *result = static_cast<float>(sqrt(sum));
}

int64_t NormScratchBytes(int64_t n) { return NormGrid(n).x * SizeOf(DType::kF64); }

void Norm(float* result, const float* g, int64_t n, void* scratch, int64_t scratch_bytes) {
  Check(scratch_bytes >= NormScratchBytes(n), "norm", "expected ", NormScratchBytes(n),
        " bytes of scratch memory but got ", scratch_bytes);
  double* partials = static_cast<double*>(scratch);
  const dim3 grid = NormGrid(n);
  LATHE_LAUNCH(SquareSums, grid, kBlock, 0, partials, g, n, Aligned16({g}));
  LATHE_LAUNCH(FinishNorm, dim3(1), kBlock, 0, result, partials, grid.x);
}

// Runs as one warp.
__global__ void ClipKernel(float* factor, const float* norm, const ClipValues* values, float* latch,
                           const ScalerState* scaler) {
  const ClipValues clip = *values;
  const float n = *norm, scale = scaler == nullptr ? 1.0f : scaler->scale;
  const float ratio = clip.max_norm / (n + 1e-6f);
  float result = !IsFinite(n) ? __uint_as_float(kNaNBits) : ratio >= 1 ? 1 : ratio;
  bool good = true;
  if (latch != nullptr) {
    const bool tolerated = scaler != nullptr && scale >= clip.smallest_scale;
    good = (IsFinite(result) || tolerated) && IsFinite(*latch);
    for (int64_t i = threadIdx.x; i < clip.num_losses; i += 32) {
      good = good && IsFinite(clip.losses[i]);
    }
  }
  good = __all_sync(kFullWarp, good);
  if (threadIdx.x != 0) return;
  if (!good) *latch = result = __uint_as_float(kNaNBits);
  *factor = result;
  clip.results[0] = n;
  clip.results[1] = scale;
}

void Clip(float* factor, const float* norm, const ClipValues* values, float* latch,
          const ScalerState* scaler) {
  LATHE_LAUNCH(ClipKernel, dim3(1), 32, 0, factor, norm, values, latch, scaler);
}

__global__ void ClampKernel(float* g, int64_t n, float limit) {
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    const float low = g[i] < -limit ? -limit : g[i];  // NaN stays NaN
    g[i] = low > limit ? limit : low;
  }
}

void Clamp(float* g, int64_t n, float limit) {
  if (n > 0) LATHE_LAUNCH(ClampKernel, GridFor(n), kBlock, 0, g, n, limit);
}

// --- loss scaling ---

__global__ void BeginPassKernel(ScalerState* scaler, ScalerRule rule) {
  if (threadIdx.x != 0 || scaler->stepped == 0) return;
  scaler->stepped = 0;
  if (scaler->skipped != 0) {
    constexpr float kSmallest = 1.17549435e-38f;  // never 0, since gradients are divided by it
    const float smaller = scaler->scale * rule.backoff_factor;
    scaler->scale = smaller < kSmallest ? kSmallest : smaller;
    scaler->growth_tracker = 0;
  } else if (++scaler->growth_tracker == rule.growth_interval) {
    const float larger = scaler->scale * rule.growth_factor;
    if (IsFinite(larger)) scaler->scale = larger;
    scaler->growth_tracker = 0;
  }
}

void BeginPass(ScalerState* scaler, const ScalerRule& rule) {
  LATHE_LAUNCH(BeginPassKernel, dim3(1), 32, 0, scaler, rule);
}

__global__ void ClearFoundKernel(DeviceStepCounts* steps) {
  if (threadIdx.x == 0) steps->found_inf = 0;
}

__global__ void UnscaleKernel(float* g, int64_t n, const ScalerState* scaler,
                              DeviceStepCounts* steps) {
  const float inverse = 1.0f / scaler->scale;
  bool finite = true;
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    g[i] *= inverse;
    finite = finite && IsFinite(g[i]);
  }
  if (!finite) steps->found_inf = 1;  // all writers write the same value
}

void Unscale(float* g, int64_t n, const ScalerState* scaler, DeviceStepCounts* steps) {
  LATHE_LAUNCH(ClearFoundKernel, dim3(1), 32, 0, steps);
  if (n > 0) LATHE_LAUNCH(UnscaleKernel, GridFor(n), kBlock, 0, g, n, scaler, steps);
}

const DeviceOptimizerKernels table = {.rates = Rates,
                                      .adamw = AdamW,
                                      .sgd = Sgd,
                                      .norm_scratch_bytes = NormScratchBytes,
                                      .norm = Norm,
                                      .clip = Clip,
                                      .clamp = Clamp,
                                      .begin_pass = BeginPass,
                                      .unscale = Unscale};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
