// Kernel tables of the device that isn't the host's processor: the same structs of function
// pointers that core/cpu/ fills, filled by core/cuda/ with functions that take the device's
// pointers and queue their work.
#pragma once

#include <cstdint>
#include <span>

#include "lathe/core/dtype.h"

namespace lathe {

template <typename Table>
struct DeviceTable {
  inline static const Table* table = nullptr;
};

// Called before main by each kernel source. Returns true.
template <typename Table>
bool RegisterDeviceKernels(const Table& table) {
  DeviceTable<Table>::table = &table;
  return true;
}

[[noreturn]] inline void ThrowNoDeviceKernels() {
  throw InvalidArgument("[device] this program was built without CUDA's kernels",
                        "build it where CUDA is installed, or use the CPU");
}

template <typename Table>
const Table& DeviceKernels() {
  if (DeviceTable<Table>::table == nullptr) ThrowNoDeviceKernels();
  return *DeviceTable<Table>::table;
}

// What tensors themselves need on a device. All pointers are the device's; n counts elements.
struct TensorKernels {
  void (*fill)(void* to, DType type, double value, int64_t n);
  // Rounds to nearest even, as the host does.
  void (*convert)(void* to, DType to_type, const void* from, DType from_type, int64_t n);
  // to += x; f32, bf16 or f16
  void (*add)(void* to, const void* x, DType type, int64_t n);
  // to *= factor; f32, bf16 or f16
  void (*scale)(void* to, DType type, double factor, int64_t n);
  // The same with a factor that lies on the device.
  void (*scale_by)(void* to, DType type, const float* factor, int64_t n);
  // Each row of to, (rows, n) of stride ld, += row (n); f32, bf16 or f16.
  void (*add_row)(void* to, DType type, const float* row, int64_t rows, int64_t n, int64_t ld);
};

// How two tensors are walked together, outermost dimension first: element strides, 0 where an
// operand stands still. No size is 1. core/broadcast.h makes them.
constexpr int kMaxWalkDims = 8;
struct WalkDims {
  int count;
  int64_t sizes[kMaxWalkDims], a_strides[kMaxWalkDims], b_strides[kMaxWalkDims];
};

// Elementwise functions F of core/elementwise_functions.h; f32, bf16 or f16.
// y_i = f(x_i)
template <typename F>
struct MapKernel {
  void (*run)(const char* op, F f, void* y, const void* x, DType type, int64_t n);
};
// y = f(a, b); y is contiguous along `dims`.
template <typename F>
struct ZipKernel {
  void (*run)(const char* op, F f, void* y, const void* a, const void* b, DType type,
              const WalkDims& dims);
};

// Sums in a fixed order; f32, bf16 or f16.
struct ReduceKernels {
  // y = x summed over the dimensions along which b, y, stands still. a: x. All of y is written.
  void (*sum)(void* y, const void* x, DType type, const WalkDims& dims);
  // Over the last dimension. x, y: (rows, n)
  void (*softmax)(void* y, const void* x, DType type, int64_t rows, int64_t n);
  void (*log_softmax)(void* y, const void* x, DType type, int64_t rows, int64_t n);
};

// Losses in float32. loss, dloss: one element, on the device. Sums are double, in a fixed order.
enum class PairLoss { kMse, kBceWithLogits };
// Which of a loss's n pairs count: those of the first *rows rows of `columns`; rows null: all.
struct PairCount {
  int64_t n, columns;
  const int32_t* rows;  // on the device
  double denominator;   // what the sum is divided by; 0: how many count
};
struct LossKernels {
  // logits: (rows, classes), labels: (rows). saved: (2 rows + 1), for the gradient. `denominator`
  // 0: the number of labels that are not ignored. A label outside [0, classes) gives a NaN.
  void (*cross_entropy)(float* loss, float* saved, const float* logits, const int64_t* labels,
                        int64_t rows, int64_t classes, int64_t ignore_index, double denominator);
  // dlogits: (rows, classes), 0 for rows that are ignored, NaN for those with labels out of range.
  void (*cross_entropy_grad)(float* dlogits, const float* dloss, const float* saved,
                             const float* logits, const int64_t* labels, int64_t rows,
                             int64_t classes, int64_t ignore_index);
  // a: predictions or logits, b: targets; (n).
  void (*pairs)(PairLoss kind, float* loss, const float* a, const float* b, const PairCount& count);
  // out: (n), the gradient of a if `first`, else of b; 0 for pairs that don't count.
  void (*pairs_grad)(PairLoss kind, bool first, float* out, const float* dloss, const float* a,
                     const float* b, const PairCount& count);
};

// A stretch of the arena, float32. What lies between stretches is left alone.
struct DeviceRange {
  int64_t begin = 0, n = 0;
  int64_t first_chunk = 0;  // NumberChunks sets it
  void* narrow = nullptr;   // (n), gets the new values; null: none
  double weight_decay = 0;
  int32_t group = 0;    // whose learning rate it has
  int32_t counter = 0;  // that counts its updates
  bool operator==(const DeviceRange&) const = default;
};
// The constants of one step for a stretch.
struct DeviceRates {
  float decay = 1;          // AdamW: 1 - lr * weight_decay; SGD: weight_decay
  float step_size = 0;      // AdamW: lr / (1 - beta1^t); SGD: lr
  float inverse_bias2 = 1;  // AdamW: 1 / sqrt(1 - beta2^t)
  float take = 1;           // SGD: the part of the gradient that enters the buffer
  bool operator==(const DeviceRates&) const = default;
};
// How they follow from learning rate, weight decay and t, the number of the stretch's update.
struct RateRule {
  bool adamw = false;  // false: SGD, whose `take` is 1 for t = 1, 1 - dampening from then on
  double beta1 = 0, beta2 = 0, dampening = 0;
  bool operator==(const RateRule&) const = default;
};
// A loss scaler and its rule (optim/grad_scaler.h). Its state lies on the device.
struct ScalerState {
  float scale = 1;
  int32_t stepped = 0;         // a step was due since the last pass
  int32_t skipped = 0;         // it, by some optimizer
  int64_t growth_tracker = 0;  // steps in a row that were taken
  int64_t num_skipped = 0;
};
struct ScalerRule {
  float growth_factor, backoff_factor;
  int64_t growth_interval;
};
// The steps of an optimizer on the device.
struct ScaledSteps {
  int32_t found_inf = 0;  // whether a gradient of the present step is not finite
  int32_t skipped = 0;    // the last step
  int64_t taken = 0;      // steps
  int64_t advanced = 0;   // steps of the schedule of rates
};

// What clipping depends on besides the gradients. It lies on the device, so that launches don't
// change with it.
struct ClipValues {
  float max_norm = 0;
  float smallest_scale = 0;       // of a loss scaler, at which an overflow is no harm
  float* results = nullptr;       // (2), gets the norm and the loss's scale, 1 without a scaler
  const float* losses = nullptr;  // (num_losses)
  int64_t num_losses = 0;
};
// The same for rates.
struct RateValues {
  // Schedule steps after the step before, which count if that was taken.
  int64_t advance = 0;
  int64_t advanced = 0;   // ScaledSteps's at which the first of the rates holds
  int64_t num_rates = 1;  // for each group; the next one holds for the next step of the schedule
};
// A step that the device decides about: with a loss scaler or behind clipping; all null: taken.
struct ScaledStep {
  ScalerState* scaler = nullptr;  // null: without
  ScaledSteps* steps = nullptr;   // without a scaler only `taken` counts
  const float* clip = nullptr;    // null: 1
  float* factor = nullptr;        // with a scaler: gets *clip, or NaN where the step is skipped
  bool operator==(const ScaledStep&) const = default;
};
constexpr int64_t kDeviceChunk = 4096;  // elements that one block updates
// Sets every range's first_chunk; returns the number of chunks, `chunks` below.
inline int64_t NumberChunks(std::span<DeviceRange> ranges) {
  int64_t chunks = 0;
  for (DeviceRange& range : ranges) {
    range.first_chunk = chunks;
    chunks += (range.n + kDeviceChunk - 1) / kDeviceChunk;
  }
  return chunks;
}

struct AdamWConstants {
  float rest1, beta2, rest2, eps;  // rest: 1 - beta, not the difference of rounded values
  bool operator==(const AdamWConstants&) const = default;
};
struct SgdConstants {
  float momentum;
  bool nesterov;
  bool operator==(const SgdConstants&) const = default;
};

// Flat passes over parameters, gradients and moments; all pointers are the device's. The formulas
// are those of core/cpu/optimizer.h and optim/. `clip`: one element, which gradients count times;
// null: 1. If it is not finite nothing changes.
struct DeviceOptimizerKernels {
  // Each stretch's counter goes up by 1, and its rates become those of that update. ranges, rates:
  // (count); lrs: (groups, values->num_rates). With a scaler: its step, and the optimizer's, is
  // taken, or skipped if a gradient is not finite. Counters and rates stay as they are where a step
  // is skipped, or held back by a *scaled.clip that is not finite.
  void (*rates)(DeviceRates* rates, int64_t* counters, const DeviceRange* ranges, int64_t count,
                const RateRule& rule, const RateValues* values, const double* lrs,
                const ScaledStep& scaled);
  // p, m, v, g: whole arenas. ranges: (count), which share no elements. narrow_type: bf16 or f16.
  void (*adamw)(float* p, float* m, float* v, const float* g, const DeviceRange* ranges,
                const DeviceRates* rates, int64_t count, int64_t chunks, DType narrow_type,
                const AdamWConstants& constants, const float* clip);
  // buffer: the momentum's, null without.
  void (*sgd)(float* p, float* buffer, const float* g, const DeviceRange* ranges,
              const DeviceRates* rates, int64_t count, int64_t chunks, DType narrow_type,
              const SgdConstants& constants, const float* clip);
  // result: one element, the L2 norm of g (n); sums are double, in a fixed order.
  int64_t (*norm_scratch_bytes)(int64_t n);
  void (*norm)(float* result, const float* g, int64_t n, void* scratch, int64_t scratch_bytes);
  // factor = min(1, max_norm / (norm + 1e-6)); NaN, which stops the update, if the norm is not
  // finite. Where there is a latch: if it, the factor or one of the losses is not finite, factor
  // and latch become NaN; but for a factor that isn't, with a scaler whose scale is not below
  // values->smallest_scale. scaler: null without.
  void (*clip)(float* factor, const float* norm, const ClipValues* values, float* latch,
               const ScalerState* scaler);
  // g into [-limit, limit]; NaN stays.
  void (*clamp)(float* g, int64_t n, float limit);
  // The scaler's rule, if a step was due since the last pass: before each backward pass.
  void (*begin_pass)(ScalerState* scaler, const ScalerRule& rule);
  // g /= scale; steps->found_inf tells whether any quotient is not finite.
  void (*unscale)(float* g, int64_t n, const ScalerState* scaler, ScaledSteps* steps);
};

// Matrix products: see core/gemm.h. C is of c_type, f32 or that of A and B.
struct GemmArgs {
  bool transpose_a, transpose_b;
  int64_t M, N, K;
  const void* a;
  int64_t lda;
  const void* b;
  int64_t ldb;
  float beta;
  void* c;
  int64_t ldc;
  const float* bias;
  DType type, c_type;
  // (M) or null: = (beta 0) or += (beta 1) the sums of op(A)'s rows. For dW = dy^T x that is the
  // gradient of the bias. A must be transposed and C f32.
  float* a_sums = nullptr;
  // So many products of one shape. The strides, in elements and not negative, lead from one's
  // matrices to the next's, bias_stride to a_sums, too; Cs share no elements.
  int64_t batch = 1;
  int64_t a_stride = 0, b_stride = 0, c_stride = 0, bias_stride = 0;
};
struct GemmKernels {
  void (*product)(const GemmArgs& args);
};

// to[index[i]] += x[i], rows of `columns` numbers of `type` (f32, bf16 or f16): for each row of
// `to` the sum, in float32, over its rows of x in a fixed order. Numbers outside [0, num_rows) and
// `skipped` are passed over.
struct RowSumArgs {
  void* to;       // [num_rows, columns]
  const void* x;  // [count, columns]
  DType type;
  const void* index;  // [count], i32 or i64
  DType index_type;
  int64_t count, num_rows, columns;
  int64_t skipped;  // -1: none
  // Scratch: [2, num_rows] i32, zeroed, and [count, columns].
  void* counters;
  float* partial;
};
struct RowSumKernels {
  void (*add)(const RowSumArgs& args);
};

// y[r] (+)= sum_t tables[t][ids[t][r]]; an id outside of its table gives a row of NaN.
struct EmbeddingArgs {
  static constexpr int kMaxTables = 4;
  int64_t rows, columns;
  int num_tables;
  bool accumulate;
  const float* tables[kMaxTables] = {};  // [table_rows[t], columns]
  int64_t table_rows[kMaxTables] = {};
  const int32_t* ids[kMaxTables] = {};  // [rows]
};
namespace cpu {
struct LayerNormArgs;  // core/cpu/layer_norm.h
}
struct EmbeddingKernels {
  void (*forward)(float* y, const EmbeddingArgs& args);
  // y = dropout(layer norm(the sums)): (rows, n) of y_type, f32, bf16 or f16. Saved: mean, rstd:
  // (rows). weight, bias: (n). Not with args.accumulate.
  void (*norm_forward)(void* y, DType y_type, float* mean, float* rstd, const float* weight,
                       const float* bias, const EmbeddingArgs& args,
                       const cpu::LayerNormArgs& norm);
  // dz: (rows, n), the gradient of the sums, which it makes again; or null. dweight, dbias: (n),
  // accumulated; both or neither may be null. partial: scratch, as LayerNormKernels'.
  void (*norm_backward)(float* dz, float* dweight, float* dbias, float* partial, const void* dy,
                        DType y_type, const float* mean, const float* rstd, const float* weight,
                        const EmbeddingArgs& args, const cpu::LayerNormArgs& norm);
};

// Zeroes rows *first to `rows` of up to kMost matrices of as many rows.
struct ClearRowsArgs {
  static constexpr int kMost = 3;
  void* matrices[kMost] = {};  // the first null one ends them
  int64_t rows = 0, row_bytes = 0;
  const int32_t* first = nullptr;  // on the device
};

// What moves elements of 2 or 4 bytes, `size`. Strides and columns count elements.
struct ShapeKernels {
  // [rows, columns] from a matrix of rows of in_stride into one of rows of out_stride.
  void (*copy_block)(const void* in, int64_t in_stride, void* out, int64_t out_stride, int64_t rows,
                     int64_t columns, int64_t size);
  // in [rows, columns] to out [columns, rows].
  void (*transpose)(const void* in, void* out, int64_t rows, int64_t columns, int64_t size);
  // out[i] = in[index[i]]: [count, columns] from [num_rows, columns]; NaN where the index, i32 or
  // i64, is outside [0, num_rows).
  void (*gather_rows)(const void* in, const void* index, DType index_type, void* out, int64_t count,
                      int64_t num_rows, int64_t columns, int64_t size);
  void (*clear_rows)(const ClearRowsArgs& args);
};

}  // namespace lathe
