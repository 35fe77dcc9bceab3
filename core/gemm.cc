#include "lathe/core/gemm.h"

#include <omp.h>

#include <algorithm>
#include <dnnl.hpp>
#include <exception>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/round_up.h"
#include "lathe/core/cpu/convert.h"
#include "lathe/core/cpu/packed_product.h"
#include "lathe/core/dnnl_product.h"

namespace lathe {
namespace {

using DataType = dnnl::memory::data_type;

// Runs `body` and turns oneDNN's exceptions into an Error.
template <typename Description, typename F>
void WithErrors(const Description& product, const F& body) {
  try {
    body();
  } catch (const dnnl::error& error) {
    Check(false, "gemm", "oneDNN failed: ", error.what(), " for M, N, K = ", product.M, ", ",
          product.N, ", ", product.K);
  }
}

template <typename Description>
void Execute(const Description& product, const void* a, const void* b, void* c, const float* bias) {
  WithErrors(product, [&] { DnnlProduct(product).Run(a, b, c, bias); });
}

// C = beta C + bias: the product if K is 0.
template <typename C, typename M>
void OnlyBias(int64_t rows, int64_t N, M beta, C* c, int64_t ldc, const M* bias) {
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < N; ++n) {
      cpu::Store(c[m * ldc + n], (beta == 0 ? M(0) : beta * cpu::Load(c[m * ldc + n])) +
                                     (bias == nullptr ? M(0) : bias[n]));
    }
  }
}

std::vector<float> ToFloat(const BFloat16* x, int64_t rows, int64_t columns, int64_t ld) {
  std::vector<float> out(static_cast<size_t>(rows * columns));
  const auto to_f32 = cpu::Kernels<cpu::ConvertKernels>().to_f32;
  if (ld == columns) {
    to_f32(out.data(), x, rows * columns);
  } else {
    for (int64_t r = 0; r < rows; ++r) to_f32(out.data() + r * columns, x + r * ld, columns);
  }
  return out;
}

bool EffectiveIsaHas(dnnl_cpu_isa_t needed) {
  return (static_cast<int>(dnnl::get_effective_cpu_isa()) & needed) == needed;
}

bool HasAmx() {
  static const bool has = EffectiveIsaHas(dnnl_cpu_isa_avx512_core_amx);
  return has;
}

// A^T B in float32, split in two if that is faster. Without AMX, oneDNN 2.6 divides matrices that
// are much longer than wide into blocks too large for the cache. This costs 2 to 20 % of the time,
// more if other cores keep the cache busy.
void WeightGradient(const DnnlMatmul& product, const BFloat16* a, const BFloat16* b, float* c) {
  const auto [M, N] = std::pair(product.M, product.N);
  constexpr int64_t kLeast = 256, kWhole = 64;
  const auto halves = [&](int64_t length, int64_t width) {
    return length >= 2 * width && width >= kLeast && length % (2 * kWhole) == 0;
  };
  DnnlMatmul half = product;
  if (halves(N, M)) {
    half.N = N / 2;
    Execute(half, a, b, c, nullptr);
    Execute(half, a, b + half.N, c + half.N, nullptr);
  } else if (halves(M, N)) {
    half.M = M / 2;
    Execute(half, a, b, c, nullptr);
    Execute(half, a + half.M, b, c + half.M * product.ldc, nullptr);
  } else {
    Execute(product, a, b, c, nullptr);
  }
}

// A part of C.
struct Half {
  int64_t row, column, M, N;
};

// Returns the two halves of op(A) op(B), for two threads that each compute one alone. Empty if
// oneDNN 2.6 should divide the work instead. Working alone is faster. On a Zen 4, at the shapes of
// BERTs, it gains 5 to 20 % for weight gradients and up to 8 % for others. More threads would copy
// too much. The halves are of rows; of columns if rows are few, or if the second operand, which
// both threads copy, is large.
std::vector<Half> Halves(Transposes transposes, int64_t M, int64_t N, int64_t K) {
  constexpr int64_t kLeast = 256, kUnit = 8, kLarge = int64_t{1} << 21;
  if (omp_get_max_threads() != 2 || omp_in_parallel()) return {};
  const bool columns = N > 2 * M || (!transposes.a && !transposes.b && K * N > kLarge);
  const int64_t length = columns ? N : M;
  if (length < kLeast) return {};
  const int64_t first = RoundUp(length / 2, kUnit);
  if (columns) return {{0, 0, M, first}, {0, first, M, N - first}};
  return {{0, 0, first, N}, {first, 0, M - first, N}};
}

// Work on this many elements takes about as long as waking a second thread.
constexpr int64_t kFewElements = 16384;
// Longer sums of products keep the threads, among which oneDNN may divide them. So results of
// classification heads keep their bits.
constexpr int64_t kShortSum = 256;

// While one exists, this thread starts no others if the condition holds.
class OneThreadIf {
 public:
  explicit OneThreadIf(bool condition) : before_(condition ? omp_get_max_threads() : 1) {
    if (before_ > 1) omp_set_num_threads(1);
  }
  ~OneThreadIf() {
    if (before_ > 1) omp_set_num_threads(before_);
  }
  OneThreadIf(const OneThreadIf&) = delete;
  OneThreadIf& operator=(const OneThreadIf&) = delete;

 private:
  int before_;
};

// Runs body(0) and body(1) at the same time.
template <typename F>
void OnTwoThreads(const F& body) {
  std::exception_ptr errors[2];
#pragma omp parallel for num_threads(2) schedule(static, 1)
  for (int i = 0; i < 2; ++i) {
    try {
      body(i);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// Returns the address of element (row, column) of op(X).
template <typename T>
const T* At(const T* x, bool transpose, int64_t ld, int64_t row, int64_t column) {
  return x + (transpose ? column * ld + row : row * ld + column);
}

template <typename M, typename C>
void ExecuteInHalves(const DnnlMatmul& product, const M* a, const M* b, C* c, const float* bias) {
  const DnnlMatmul& p = product;
  const std::vector<Half> halves = Halves({.a = p.transpose_a, .b = p.transpose_b}, p.M, p.N, p.K);
  if (halves.empty()) return Execute(p, a, b, c, bias);
  WithErrors(p, [&] {
    // One thread prepares both: two would wait for each other.
    std::vector<DnnlProduct<DnnlMatmul>> ready;
    for (const Half& half : halves) {
      DnnlMatmul part = p;
      part.M = half.M;
      part.N = half.N;
      part.threads = 1;
      ready.emplace_back(part);
    }
    OnTwoThreads([&](int i) {
      const Half& half = halves[static_cast<size_t>(i)];
      ready[static_cast<size_t>(i)].Run(
          At(a, p.transpose_a, p.lda, half.row, 0), At(b, p.transpose_b, p.ldb, 0, half.column),
          c + half.row * p.ldc + half.column, bias == nullptr ? nullptr : bias + half.column);
    });
  });
}

// Describes Gemm's product for oneDNN. `input` is the type of A and B, `output` that of C.
DnnlMatmul MatmulOf(DataType input, DataType output, Transposes transposes, int64_t M, int64_t N,
                    int64_t K, int64_t lda, int64_t ldb, float beta, int64_t ldc, bool bias) {
  return {.transpose_a = transposes.a,
          .transpose_b = transposes.b,
          .accumulate = beta != 0,
          .bias = bias,
          .input = input,
          .output = output,
          .M = M,
          .N = N,
          .K = K,
          .lda = lda,
          .ldb = ldb,
          .ldc = ldc};
}

// Describes Gemm's product for the packed kernels.
template <typename T, typename C>
cpu::PackedProduct<T, C> PackedOf(Transposes transposes, int64_t M, int64_t N, int64_t K,
                                  const T* a, int64_t lda, const T* b, int64_t ldb, float beta,
                                  C* c, int64_t ldc, const float* bias) {
  return {.transpose_a = transposes.a,
          .transpose_b = transposes.b,
          .accumulate = beta != 0,
          .M = M,
          .N = N,
          .K = K,
          .a = a,
          .lda = lda,
          .b = b,
          .ldb = ldb,
          .c = c,
          .ldc = ldc,
          .bias = bias};
}

template <typename C>
auto PackedBFloat16() {
  const auto& kernels = cpu::Kernels<cpu::PackedProductKernels>();
  if constexpr (std::is_same_v<C, float>) {
    return kernels.bf16_to_f32;
  } else {
    return kernels.bf16;
  }
}

template <typename C>
void BFloat16Gemm(Transposes transposes, int64_t M, int64_t N, int64_t K, const BFloat16* a,
                  int64_t lda, const BFloat16* b, int64_t ldb, float beta, C* c, int64_t ldc,
                  const float* bias) {
  Check(beta == 0 || (beta == 1 && bias == nullptr), "gemm", "beta must be 0 or 1 but is ", beta);
  if (M == 0 || N == 0) return;
  if (K == 0) return OnlyBias(M, N, beta, c, ldc, bias);
  if (HasFastBFloat16()) {
    const DataType output = std::is_same_v<C, float> ? DataType::f32 : DataType::bf16;
    const DnnlMatmul product =
        MatmulOf(DataType::bf16, output, transposes, M, N, K, lda, ldb, beta, ldc, bias != nullptr);
    if (HasAmx()) return Execute(product, a, b, c, bias);
    if constexpr (std::is_same_v<C, float>) {
      if (transposes.a && !transposes.b && bias == nullptr && omp_get_max_threads() != 2)
        return WeightGradient(product, a, b, c);
    }
    return ExecuteInHalves(product, a, b, c, bias);
  }
  if (const auto multiply = PackedBFloat16<C>()) {
    return multiply(PackedOf(transposes, M, N, K, a, lda, b, ldb, beta, c, ldc, bias));
  }
  const std::vector<float> wide_a = transposes.a ? ToFloat(a, K, M, lda) : ToFloat(a, M, K, lda);
  const std::vector<float> wide_b = transposes.b ? ToFloat(b, N, K, ldb) : ToFloat(b, K, N, ldb);
  std::vector<float> wide_c(static_cast<size_t>(M * N));
  Gemm(transposes, M, N, K, wide_a.data(), transposes.a ? M : K, wide_b.data(),
       transposes.b ? K : N, 0.0f, wide_c.data(), N, bias);
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t n = 0; n < N; ++n) {
      C& to = c[m * ldc + n];
      cpu::Store(to, wide_c[static_cast<size_t>(m * N + n)] + (beta == 0 ? 0 : cpu::Load(to)));
    }
  }
}

}  // namespace

bool HasFastBFloat16() {
  static const bool fast = [] {
    if (cpu::IsaLevel() < 5) return false;
    try {
      DnnlMatmul{.transpose_a = false,
                 .transpose_b = false,
                 .accumulate = false,
                 .bias = false,
                 .input = DataType::bf16,
                 .output = DataType::bf16,
                 .M = 16,
                 .N = 16,
                 .K = 16,
                 .lda = 16,
                 .ldb = 16,
                 .ldc = 16}
          .Make();
      // oneDNN emulates bfloat16 on AVX-512 machines without it.
      return EffectiveIsaHas(dnnl_cpu_isa_avx512_core_bf16);
    } catch (const dnnl::error&) {
      return false;
    }
  }();
  return fast;
}

std::string SlowPrecisionNote(const std::string& precision, Device device) {
  if (precision != "bf16" || !device.is_cpu() || HasFastBFloat16()) return "";
  const bool packed = cpu::Kernels<cpu::PackedProductKernels>().bf16 != nullptr;
  return std::string("this processor has no bfloat16 products, so mixed precision bf16 is ") +
         (packed ? "no faster than float32" : "slow");
}

int64_t FullSpeedRows(int64_t rows, DType dtype) {
  if (dtype == DType::kF64) return rows;
  // Other numbers of rows cost a tenth of the speed. Preparing a product takes 0.2 ms without AMX,
  // 0.3 to 2 ms with it; packed products need no preparation. With AMX, oneDNN 2.6 is several times
  // slower at some odd multiples of 32 from 29 * 32 on.
  const bool amx = dtype == DType::kBF16 && HasFastBFloat16() && HasAmx();
  const auto& kernels = cpu::Kernels<cpu::PackedProductKernels>();
  const bool packed = dtype == DType::kF32 ? kernels.f32 != nullptr : kernels.bf16 != nullptr;
  const int64_t step = amx ? (rows <= 28 * 32 ? 32 : 64) : packed || rows < 256 ? 4 : 16;
  return RoundUp(rows, step);
}

void Gemm(Transposes transposes, int64_t M, int64_t N, int64_t K, const float* a, int64_t lda,
          const float* b, int64_t ldb, float beta, float* c, int64_t ldc, const float* bias) {
  Check(beta == 0 || (beta == 1 && bias == nullptr), "gemm", "beta must be 0 or 1 but is ", beta);
  if (M == 0 || N == 0) return;
  if (K == 0) return OnlyBias(M, N, beta, c, ldc, bias);
  if (const auto multiply = cpu::Kernels<cpu::PackedProductKernels>().f32) {
    return multiply(PackedOf(transposes, M, N, K, a, lda, b, ldb, beta, c, ldc, bias));
  }
  const OneThreadIf one_thread(M * N * K <= kFewElements && K <= kShortSum);
  // Products of x W^T add the bias while the results are in registers. They must be prepared for
  // each shape, but that generates little code. If N <= K, several threads hinder each other in
  // sgemm and in the inner product, which are then up to a third slower.
  if (!transposes.a && transposes.b && beta == 0 && lda == K && ldb == K && ldc == N) {
    const bool in_columns = N > 2 * M && !Halves({.b = true}, M, N, K).empty();
    if ((N <= K && omp_get_max_threads() > 1) || in_columns) {
      return ExecuteInHalves(MatmulOf(DataType::f32, DataType::f32, transposes, M, N, K, lda, ldb,
                                      beta, ldc, bias != nullptr),
                             a, b, c, bias);
    }
    if (bias != nullptr) return Execute(DnnlDense{M, N, K}, a, b, c, bias);
  }
  if (bias != nullptr) {
#pragma omp parallel for schedule(static) if (M * N > kFewElements)
    for (int64_t m = 0; m < M; ++m) std::copy_n(bias, N, c + m * ldc);
  }
  // sgemm, because other prepared float32 products are slower and must be prepared for each shape.
  // Some run at half the speed if rows lie a multiple of 4 KB apart.
  const auto multiply = [&](const Half& part) {
    const dnnl_status_t status = dnnl_sgemm(
        transposes.a ? 'T' : 'N', transposes.b ? 'T' : 'N', part.M, part.N, K, 1.0f,
        At(a, transposes.a, lda, part.row, 0), lda, At(b, transposes.b, ldb, 0, part.column), ldb,
        bias != nullptr ? 1.0f : beta, c + part.row * ldc + part.column, ldc);
    Check(status == dnnl_success, "gemm", "oneDNN failed with status ", status,
          " for M, N, K = ", part.M, ", ", part.N, ", ", K);
  };
  const std::vector<Half> halves = Halves(transposes, M, N, K);
  if (halves.empty()) return multiply({0, 0, M, N});
  OnTwoThreads([&](int i) { multiply(halves[static_cast<size_t>(i)]); });
}

void Gemm(Transposes transposes, int64_t M, int64_t N, int64_t K, const double* a, int64_t lda,
          const double* b, int64_t ldb, double beta, double* c, int64_t ldc, const double* bias) {
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t n = 0; n < N; ++n) {
      double sum = bias == nullptr ? 0 : bias[n];
      for (int64_t k = 0; k < K; ++k) {
        sum += (transposes.a ? a[k * lda + m] : a[m * lda + k]) *
               (transposes.b ? b[n * ldb + k] : b[k * ldb + n]);
      }
      c[m * ldc + n] = sum + (beta == 0 ? 0 : beta * c[m * ldc + n]);
    }
  }
}

void Gemm(Transposes transposes, int64_t M, int64_t N, int64_t K, const BFloat16* a, int64_t lda,
          const BFloat16* b, int64_t ldb, float beta, BFloat16* c, int64_t ldc, const float* bias) {
  BFloat16Gemm(transposes, M, N, K, a, lda, b, ldb, beta, c, ldc, bias);
}

void Gemm(Transposes transposes, int64_t M, int64_t N, int64_t K, const BFloat16* a, int64_t lda,
          const BFloat16* b, int64_t ldb, float beta, float* c, int64_t ldc, const float* bias) {
  BFloat16Gemm(transposes, M, N, K, a, lda, b, ldb, beta, c, ldc, bias);
}

}  // namespace lathe
