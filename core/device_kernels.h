// Kernel tables for a device other than the host's processor. They are structs of function
// pointers, as in core/cpu/, which core/cuda/ fills with functions that take device pointers and
// queue their work.
#pragma once

#include <cstdint>
#include <span>

#include "lathe/core/dtype.h"

namespace lathe {

template <typename Table>
struct DeviceTable {
  inline static const Table* table = nullptr;
};

// Called before main by each source of kernels. Returns true.
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

// Operations that tensors themselves need. All pointers are the device's; n counts elements.
struct TensorKernels {
  void (*fill)(void* to, DType type, double value, int64_t n);
  // Rounds to nearest, ties to even, as the host does.
  void (*convert)(void* to, DType to_type, const void* from, DType from_type, int64_t n);
  // to += x; f32, bf16 or f16.
  void (*add)(void* to, const void* x, DType type, int64_t n);
  // to *= factor; f32, bf16 or f16.
  void (*scale)(void* to, DType type, double factor, int64_t n);
  // The same with a factor that lies on the device.
  void (*scale_by)(void* to, DType type, const float* factor, int64_t n);
  // Adds row (n) to each row of to: (rows, n) with row stride ld; f32, bf16 or f16.
  void (*add_row)(void* to, DType type, const float* row, int64_t rows, int64_t n, int64_t ld);
};

// A walk over two tensors together, outermost dimension first. Strides count elements; a stride of
// 0 repeats the operand along that dimension. No size is 1. Made by core/broadcast.h.
constexpr int kMaxWalkDims = 8;
struct WalkDims {
  int count;
  int64_t sizes[kMaxWalkDims], a_strides[kMaxWalkDims], b_strides[kMaxWalkDims];
};

// The functions F are those of core/elementwise_functions.h; f32, bf16 or f16.
//
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

// Sums are formed in a fixed order; f32, bf16 or f16.
struct ReduceKernels {
  // Sums x (operand a of `dims`) over the dimensions along which y (operand b) has stride 0. Writes
  // all of y.
  void (*sum)(void* y, const void* x, DType type, const WalkDims& dims);
  // Over the last dimension. x, y: (rows, n).
  void (*softmax)(void* y, const void* x, DType type, int64_t rows, int64_t n);
  void (*log_softmax)(void* y, const void* x, DType type, int64_t rows, int64_t n);
};

// Losses in float32. loss, dloss: one element, on the device. Sums are double, in a fixed order.
enum class PairLoss { kMse, kBceWithLogits };
// The pairs of a loss that count: those of the first *rows rows of `columns` pairs; all n pairs if
// rows is null.
struct PairCount {
  int64_t n, columns;
  const int32_t* rows;  // on the device
  double denominator;   // divides the sum; 0: the number of pairs that count
};
struct LossKernels {
  // logits: (rows, classes), labels: (rows). saved: (2 rows + 1), for the gradient. A `denominator`
  // of 0 means the number of labels that are not ignored. A label outside [0, classes) gives NaN.
  void (*cross_entropy)(float* loss, float* saved, const float* logits, const int64_t* labels,
                        int64_t rows, int64_t classes, int64_t ignore_index, double denominator);
  // dlogits: (rows, classes); 0 for ignored rows, NaN for rows whose label is out of range.
  void (*cross_entropy_grad)(float* dlogits, const float* dloss, const float* saved,
                             const float* logits, const int64_t* labels, int64_t rows,
                             int64_t classes, int64_t ignore_index);
  // a: predictions or logits, b: targets; (n).
  void (*pairs)(PairLoss kind, float* loss, const float* a, const float* b, const PairCount& count);
  // out: (n), the gradient of a if `first`, else of b; 0 for pairs that don't count.
  void (*pairs_grad)(PairLoss kind, bool first, float* out, const float* dloss, const float* a,
                     const float* b, const PairCount& count);
};

// A slice of the arena, float32. Elements between slices are left as they are.
struct DeviceRange {
  int64_t begin = 0, n = 0;
  int64_t first_chunk = 0;  // set by NumberChunks
  void* narrow = nullptr;   // (n), receives the new values in the narrow dtype; null: none
  double weight_decay = 0;
  int32_t group = 0;    // index of its parameter group, for the learning rate
  int32_t counter = 0;  // index of the counter of its updates
  bool operator==(const DeviceRange&) const = default;
};
// The constants of one update of a slice.
struct DeviceRates {
  float decay = 1;          // AdamW: 1 - lr * weight_decay; SGD: weight_decay
  float step_size = 0;      // AdamW: lr / (1 - beta1^t); SGD: lr
  float inverse_bias2 = 1;  // AdamW: 1 / sqrt(1 - beta2^t)
  float take = 1;           // SGD: the part of the gradient that enters the momentum buffer
  bool operator==(const DeviceRates&) const = default;
};
// How DeviceRates follow from the learning rate, the weight decay and t, the number of the slice's
// update.
struct RateRule {
  bool adamw = false;  // false: SGD, where `take` is 1 for t = 1, then 1 - dampening
  double beta1 = 0, beta2 = 0, dampening = 0;
  bool operator==(const RateRule&) const = default;
};
// The state of a loss scaler, on the device, and its rule (optim/grad_scaler.h).
struct ScalerState {
  float scale = 1;
  int32_t stepped = 0;         // 1: a step was due since the last backward pass
  int32_t skipped = 0;         // 1: an optimizer skipped that step
  int64_t growth_tracker = 0;  // successive steps that were taken
  int64_t num_skipped = 0;
};
struct ScalerRule {
  float growth_factor, backoff_factor;
  int64_t growth_interval;
};
// The steps of one optimizer, on the device.
struct ScaledSteps {
  int32_t found_inf = 0;  // 1: a gradient of the present step is not finite
  int32_t skipped = 0;    // 1: the last step was skipped
  int64_t taken = 0;      // steps taken so far
  int64_t advanced = 0;   // schedule steps so far that count
};

// The inputs of clipping besides the gradients. They lie on the device, so that a recorded launch
// stays valid when they change.
struct ClipValues {
  float max_norm = 0;
  float smallest_scale = 0;       // overflow is harmless while a scaler's scale is at least this
  float* results = nullptr;       // (2), receives the norm and the scale, 1 without a scaler
  const float* losses = nullptr;  // (num_losses)
  int64_t num_losses = 0;
};
// The inputs of a step besides the gradients; on the device for the same reason.
struct RateValues {
  // The number of schedule steps since the previous optimizer step. They count if that was not
  // skipped.
  int64_t advance = 0;
  int64_t advanced = 0;   // ScaledSteps::advanced when the first rate holds
  int64_t num_rates = 1;  // per group; each further one is for one more schedule step
};
// A step that the device itself may skip or hold back, because of a loss scaler or of clipping. If
// all pointers are null, the step is always taken.
struct ScaledStep {
  ScalerState* scaler = nullptr;  // null: no scaler
  ScaledSteps* steps = nullptr;   // without a scaler, only `taken` is kept
  const float* clip = nullptr;    // factor of the gradients; null: 1
  float* factor = nullptr;        // with a scaler: receives *clip, or NaN if the step is skipped
  bool operator==(const ScaledStep&) const = default;
};
constexpr int64_t kDeviceChunk = 4096;  // elements that one block updates
// Sets first_chunk of every range. Returns the number of chunks: `chunks` below.
inline int64_t NumberChunks(std::span<DeviceRange> ranges) {
  int64_t chunks = 0;
  for (DeviceRange& range : ranges) {
    range.first_chunk = chunks;
    chunks += (range.n + kDeviceChunk - 1) / kDeviceChunk;
  }
  return chunks;
}

struct AdamWConstants {
  float rest1, beta2, rest2, eps;  // rest: 1 - beta in double, then rounded
  bool operator==(const AdamWConstants&) const = default;
};
struct SgdConstants {
  float momentum;
  bool nesterov;
  bool operator==(const SgdConstants&) const = default;
};

// Passes over whole arenas of parameters, gradients and moments; all pointers are the device's. The
// formulas are those of core/cpu/optimizer.h and optim/. `clip` is one element, a factor of all
// gradients; null: 1. If it is not finite, nothing is changed.
struct DeviceOptimizerKernels {
  // Increments the counter of each slice and sets the rates of that update. ranges, rates: (count);
  // lrs: (groups, values->num_rates). With a scaler, the step is taken, or skipped if a gradient is
  // not finite; scaler and ScaledSteps note which. Counters and rates stay as they are if the step
  // is skipped, or held back because *scaled.clip is not finite.
  void (*rates)(DeviceRates* rates, int64_t* counters, const DeviceRange* ranges, int64_t count,
                const RateRule& rule, const RateValues* values, const double* lrs,
                const ScaledStep& scaled);
  // p, m, v, g: whole arenas. ranges: (count), without common elements. narrow_type: bf16 or f16.
  void (*adamw)(float* p, float* m, float* v, const float* g, const DeviceRange* ranges,
                const DeviceRates* rates, int64_t count, int64_t chunks, DType narrow_type,
                const AdamWConstants& constants, const float* clip);
  // buffer: the momentum buffer; null without momentum.
  void (*sgd)(float* p, float* buffer, const float* g, const DeviceRange* ranges,
              const DeviceRates* rates, int64_t count, int64_t chunks, DType narrow_type,
              const SgdConstants& constants, const float* clip);
  // result: one element, the L2 norm of g (n). Sums are double, in a fixed order.
  int64_t (*norm_scratch_bytes)(int64_t n);
  void (*norm)(float* result, const float* g, int64_t n, void* scratch, int64_t scratch_bytes);
  // factor = min(1, max_norm / (norm + 1e-6)), or NaN, which stops the update, if the norm is not
  // finite. A latch, if given, turns NaN with the first bad step and makes all later factors NaN. A
  // step is bad if one of values->losses or the factor is not finite. But while the scale is at
  // least values->smallest_scale, a factor that is not finite stops only its own step. scaler,
  // latch: null if there is none.
  void (*clip)(float* factor, const float* norm, const ClipValues* values, float* latch,
               const ScalerState* scaler);
  // Limits g to [-limit, limit]; NaN stays NaN.
  void (*clamp)(float* g, int64_t n, float limit);
  // Applies the scaler's rule if a step was due since the last pass. Called before each backward
  // pass.
  void (*begin_pass)(ScalerState* scaler, const ScalerRule& rule);
  // g /= scale. Sets steps->found_inf to 1 if any quotient is not finite, else to 0.
  void (*unscale)(float* g, int64_t n, const ScalerState* scaler, ScaledSteps* steps);
};

// Matrix products: see core/gemm.h. C has dtype c_type: f32, or that of A and B.
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
  // (M) or null: set (beta 0) to the sums of op(A)'s rows, or increased by them (beta 1). For
  // dW = dy^T x that is the bias gradient. A must be transposed and C f32.
  float* a_sums = nullptr;
  // The number of products of this shape. The strides, in elements and not negative, lead from the
  // matrices of one product to those of the next; bias_stride also applies to a_sums. The Cs must
  // not overlap.
  int64_t batch = 1;
  int64_t a_stride = 0, b_stride = 0, c_stride = 0, bias_stride = 0;
};
struct GemmKernels {
  void (*product)(const GemmArgs& args);
};

// to[index[i]] += x[i], where `to` and x have rows of `columns` numbers of `type`: f32, bf16 or
// f16. The rows of x with one index are summed in float32, in a fixed order. Indices outside
// [0, num_rows) and the index `skipped` are ignored.
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

// y[r] (+)= sum_t tables[t][ids[t][r]]. An id outside its table makes the row NaN.
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
  // y = dropout(layer norm(the sums)): (rows, n) of y_type: f32, bf16 or f16. Saves mean and rstd:
  // (rows). weight, bias: (n). args.accumulate must be false.
  void (*norm_forward)(void* y, DType y_type, float* mean, float* rstd, const float* weight,
                       const float* bias, const EmbeddingArgs& args,
                       const cpu::LayerNormArgs& norm);
  // dz: (rows, n), the gradient of the sums, or null. dweight, dbias: (n), added to; both or
  // neither may be null. The sums are computed again. partial: scratch, as for
  // cpu::LayerNormKernels.
  void (*norm_backward)(float* dz, float* dweight, float* dbias, float* partial, const void* dy,
                        DType y_type, const float* mean, const float* rstd, const float* weight,
                        const EmbeddingArgs& args, const cpu::LayerNormArgs& norm);
};

// Zeroes rows [*first, rows) of up to kMost matrices, each of `rows` rows.
struct ClearRowsArgs {
  static constexpr int kMost = 3;
  void* matrices[kMost] = {};  // ended by the first null one
  int64_t rows = 0, row_bytes = 0;
  const int32_t* first = nullptr;  // on the device
};

// Kernels that move elements of `size` bytes: 2 or 4. Strides and columns count elements.
struct ShapeKernels {
  // Copies [rows, columns] from a matrix of row stride in_stride to one of row stride out_stride.
  void (*copy_block)(const void* in, int64_t in_stride, void* out, int64_t out_stride, int64_t rows,
                     int64_t columns, int64_t size);
  // Transposes in [rows, columns] to out [columns, rows].
  void (*transpose)(const void* in, void* out, int64_t rows, int64_t columns, int64_t size);
  // out[i] = in[index[i]]: [count, columns] from [num_rows, columns]. The row is NaN if the index
  // (i32 or i64) is outside [0, num_rows).
  void (*gather_rows)(const void* in, const void* index, DType index_type, void* out, int64_t count,
                      int64_t num_rows, int64_t columns, int64_t size);
  void (*clear_rows)(const ClearRowsArgs& args);
};

}  // namespace lathe
