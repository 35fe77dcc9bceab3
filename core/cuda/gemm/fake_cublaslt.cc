#include "lathe/core/cuda/gemm/fake_cublaslt.h"

#include <algorithm>
#include <cstring>

#include "lathe/core/cuda/gemm/cublaslt_library.h"
#include "lathe/core/cuda/gemm/gemm_problem.h"

namespace lathe::cuda {
namespace {

struct Operation {
  cublasComputeType_t compute;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N, bias_type = -1;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int64_t bias_stride = 0;
};
struct Layout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t ld;
  int32_t batch = 1;
  int64_t stride = 0;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C and D
};
// The problem that an algorithm was made for. It is stored in the algorithm's own bytes.
struct Algorithm {
  static constexpr uint32_t kMark = 0xa190;
  uint32_t mark;  // kMark, which tells an algorithm from any other bytes
  int index;
  uint32_t schemes, alignment[4], bias_alignment;
  uint64_t workspace;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

template <typename T, typename Opaque>
T& As(Opaque* opaque) {
  return *reinterpret_cast<T*>(opaque);
}

void Expect(bool ok, const char* mistake) {
  if (!ok) Fake().mistakes.push_back(mistake);
}

template <typename T, typename Opaque>
cublasStatus_t Make(Opaque** opaque, const T& value) {
  ++Fake().live;
  *opaque = reinterpret_cast<Opaque*>(new T(value));
  return CUBLAS_STATUS_SUCCESS;
}
template <typename T, typename Opaque>
cublasStatus_t Destroy(Opaque* opaque) {
  --Fake().live;
  delete reinterpret_cast<T*>(opaque);
  return CUBLAS_STATUS_SUCCESS;
}
template <typename T>
cublasStatus_t Put(T& to, const void* from, size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t SetOperation(cublasLtMatmulDesc_t opaque, cublasLtMatmulDescAttributes_t attribute,
                            const void* value, size_t bytes) {
  auto& operation = As<Operation>(opaque);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Put(operation.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return Put(operation.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Put(operation.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Put(operation.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
      return Put(operation.bias_stride, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return Put(operation.bias_type, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t SetLayout(cublasLtMatrixLayout_t opaque, cublasLtMatrixLayoutAttribute_t attribute,
                         const void* value, size_t bytes) {
  auto& layout = As<Layout>(opaque);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) return Put(layout.batch, value, bytes);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) {
    return Put(layout.stride, value, bytes);
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t SetPreference(cublasLtMatmulPreference_t opaque,
                             cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                             size_t bytes) {
  auto& preference = As<Preference>(opaque);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Put(preference.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return Put(preference.schemes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return Put(preference.alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
                 value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

// Returns true if the product's shapes allow its epilogue.
bool HasEpilogue(const Operation& operation, const Layout& a, const Layout& d) {
  const uint64_t k = operation.transpose_a == CUBLAS_OP_T ? a.rows : a.columns;
  return operation.epilogue != CUBLASLT_EPILOGUE_BIAS || (d.rows > 1 && d.columns > 1 && k > 1);
}

cublasStatus_t Propose(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                       cublasLtMatmulPreference_t preference, int most,
                       cublasLtMatmulHeuristicResult_t results[], int* count) {
  FakeCublasLt& fake = Fake();
  ++fake.heuristics;
  fake.requested = most;
  *count = 0;
  if (fake.heuristic_fails) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (As<Layout>(a).batch > 1 && !fake.has_batches) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (As<Operation>(operation).epilogue == CUBLASLT_EPILOGUE_BGRADB && !fake.has_bias_gradients) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const auto& p = As<Preference>(preference);
  if (As<Operation>(operation).epilogue == CUBLASLT_EPILOGUE_BIAS &&
      *std::min_element(p.alignment, p.alignment + 4) < fake.least_bias_alignment) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (!HasEpilogue(As<Operation>(operation), As<Layout>(a), As<Layout>(d))) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  for (; *count < std::min(most, static_cast<int>(fake.milliseconds.size())); ++*count) {
    Algorithm algorithm = {};
    algorithm.mark = Algorithm::kMark;
    algorithm.index = *count;
    algorithm.schemes = p.schemes;
    algorithm.workspace = p.workspace;
    algorithm.bias_alignment =
        static_cast<uint32_t>(AlignmentOf(As<Operation>(operation).bias) >= 16 ? 16 : 1);
    std::copy(p.alignment, p.alignment + 4, algorithm.alignment);
    results[*count] = {};
    std::memcpy(&results[*count].algo, &algorithm, sizeof(algorithm));
    results[*count].state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CheckAlgorithm(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t,
                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algo,
                              cublasLtMatmulHeuristicResult_t* result) {
  ++Fake().checks;
  Algorithm algorithm;
  std::memcpy(&algorithm, algo, sizeof(algorithm));
  if (Fake().checks_fail || algorithm.mark != Algorithm::kMark || algorithm.index < 0 ||
      algorithm.index >= static_cast<int>(Fake().milliseconds.size()) ||
      !HasEpilogue(As<Operation>(operation), As<Layout>(a), As<Layout>(d))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *result = {};
  result->state = CUBLAS_STATUS_SUCCESS;
  result->workspaceSize = algorithm.workspace;
  return CUBLAS_STATUS_SUCCESS;
}

const void* At(const void* from, cudaDataType_t type, int64_t elements) {
  return static_cast<const char*>(from) + elements * (type == CUDA_R_32F ? 4 : 2);
}

const void* last_d = nullptr;

// What a product's descriptors say.
struct Product {
  const Operation& o;
  const Layout &la, &lb, &ld;
  const bool ta = o.transpose_a == CUBLAS_OP_T, tb = o.transpose_b == CUBLAS_OP_T;
  const uint64_t k = ta ? la.rows : la.columns;
  const bool bias = o.epilogue == CUBLASLT_EPILOGUE_BIAS;
  const bool bias_gradient = o.epilogue == CUBLASLT_EPILOGUE_BGRADB;
};

void ExpectShapesFit(const Product& p) {
  Expect((p.ta ? p.la.columns : p.la.rows) == p.ld.rows &&
             (p.tb ? p.lb.rows : p.lb.columns) == p.ld.columns &&
             (p.tb ? p.lb.columns : p.lb.rows) == p.k,
         "shapes don't fit");
  for (const Layout* layout : {&p.la, &p.lb, &p.ld}) {
    Expect(layout->rows > 0 && layout->columns > 0, "an empty matrix");
    Expect(layout->ld >= static_cast<int64_t>(layout->rows), "a stride below the rows");
  }
  Expect(p.la.batch == p.lb.batch && p.la.batch == p.ld.batch, "batches of different sizes");
  Expect(p.la.stride >= 0 && p.lb.stride >= 0 && p.o.bias_stride >= 0, "a negative stride");
  Expect(p.ld.batch == 1 || p.ld.stride >= static_cast<int64_t>(p.ld.columns - 1) * p.ld.ld +
                                               static_cast<int64_t>(p.ld.rows),
         "results of a batch overlap");
  Expect(p.la.type == p.lb.type && (p.ld.type == p.la.type || p.ld.type == CUDA_R_32F), "types");
}

void ExpectAligned(const Product& p, const Algorithm& algorithm, const void* a, const void* b,
                   const void* c, const void* d) {
  const int32_t last = p.ld.batch - 1;
  const void* pointers[8] = {a,
                             b,
                             c,
                             d,
                             At(a, p.la.type, last * p.la.stride),
                             At(b, p.lb.type, last * p.lb.stride),
                             At(c, p.ld.type, last * p.ld.stride),
                             At(d, p.ld.type, last * p.ld.stride)};
  for (int i = 0; i < 8; ++i) {
    Expect(AlignmentOf(pointers[i]) >= static_cast<int>(algorithm.alignment[i % 4]),
           "a matrix is less aligned than was promised");
  }
}

void ExpectEpilogueWorks(const Product& p, float beta) {
  Expect(p.bias || p.bias_gradient || p.o.epilogue == CUBLASLT_EPILOGUE_DEFAULT,
         "an unknown epilogue");
  if (p.bias || p.bias_gradient) {
    const int32_t last = p.ld.batch - 1;
    Expect(p.o.bias != nullptr && p.o.bias_type == p.ld.type, "a bias must have D's type");
    Expect(AlignmentOf(p.o.bias) >= 16 &&
               AlignmentOf(At(p.o.bias, p.ld.type, last * p.o.bias_stride)) >= 16,
           "a bias must be aligned");
  }
  if (p.bias_gradient) {
    Expect(beta == 0 && p.tb, "not how bias gradients are known to work");
  }
}

// Computes one product of a batch, with its epilogue.
void MultiplyOne(const Product& p, float alpha, float beta, const void* a, const void* b, void* d,
                 const void* bias) {
  for (int64_t column = 0; column < static_cast<int64_t>(p.ld.columns); ++column) {
    for (int64_t row = 0; row < static_cast<int64_t>(p.ld.rows); ++row) {
      float sum = 0;
      for (int64_t i = 0; i < static_cast<int64_t>(p.k); ++i) {
        sum += ReadElement(a, p.la.type, p.ta ? row * p.la.ld + i : i * p.la.ld + row) *
               ReadElement(b, p.lb.type, p.tb ? i * p.lb.ld + column : column * p.lb.ld + i);
      }
      sum *= alpha;
      const int64_t at = column * p.ld.ld + row;
      if (beta != 0) sum += beta * ReadElement(d, p.ld.type, at);
      if (p.bias) sum += ReadElement(bias, p.ld.type, row);
      WriteElement(d, p.ld.type, at, sum);
    }
  }
  for (int64_t column = 0; p.bias_gradient && column < static_cast<int64_t>(p.ld.columns);
       ++column) {
    float sum = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(p.k); ++i) {
      sum += ReadElement(b, p.lb.type, p.tb ? i * p.lb.ld + column : column * p.lb.ld + i);
    }
    WriteElement(const_cast<void*>(bias), p.ld.type, column, sum);
  }
}

cublasStatus_t Multiply(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha,
                        const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                        cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                        cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                        const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes,
                        cudaStream_t) {
  const Product p = {.o = As<Operation>(operation),
                     .la = As<Layout>(a_layout),
                     .lb = As<Layout>(b_layout),
                     .ld = As<Layout>(d_layout)};
  Algorithm algorithm;
  std::memcpy(&algorithm, algo, sizeof(algorithm));
  const float alpha_value = *static_cast<const float*>(alpha);
  const float beta_value = *static_cast<const float*>(beta);
  ExpectShapesFit(p);
  Expect(c == d && c_layout == d_layout, "C isn't D");
  ExpectAligned(p, algorithm, a, b, c, d);
  Expect(AlignmentOf(workspace) == 256 && workspace_bytes >= algorithm.workspace,
         "the workspace is not what was promised");
  ExpectEpilogueWorks(p, beta_value);
  Fake().products.push_back({algorithm.index, p.o.compute, p.la.type, p.ld.type, p.ld.rows,
                             p.ld.columns, p.k, p.ld.batch, p.bias, p.bias_gradient,
                             algorithm.schemes, d == last_d});
  last_d = d;
  if (p.bias && (Fake().biases_fail || !HasEpilogue(p.o, p.la, p.ld))) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (Fake().failing.contains(algorithm.index) || (p.bias_gradient && Fake().bias_gradients_fail)) {
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  Fake().clock_ms += Fake().milliseconds[static_cast<size_t>(algorithm.index)] +
                     (p.bias_gradient ? Fake().bias_gradient_milliseconds : 0) +
                     (p.ld.batch > 1 ? Fake().batch_milliseconds : 0);
  for (int64_t i = 0; i < p.ld.batch; ++i) {
    MultiplyOne(p, alpha_value, beta_value, At(a, p.la.type, i * p.la.stride),
                At(b, p.lb.type, i * p.lb.stride),
                const_cast<void*>(At(d, p.ld.type, i * p.ld.stride)),
                At(p.o.bias, p.ld.type, i * p.o.bias_stride));
  }
  // A product destroys the workspace's contents; overwriting the ends stands for that.
  std::memset(workspace, 0xff, 256);
  std::memset(static_cast<char*>(workspace) + algorithm.workspace - 256, 0xff, 256);
  return CUBLAS_STATUS_SUCCESS;
}
}  // namespace

const CublasLtLibrary& CublasLt() {
  static const CublasLtLibrary lt = {
      .GetStatusString = [](cublasStatus_t) -> const char* { return "a fake error"; },
      .GetVersion = [] { return size_t{130100}; },
      .Create =
          [](cublasLtHandle_t* handle) {
            *handle = nullptr;
            return CUBLAS_STATUS_SUCCESS;
          },
      .MatmulDescCreate = [](cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                             cudaDataType_t) { return Make(made, Operation{.compute = compute}); },
      .MatmulDescDestroy = Destroy<Operation, cublasLtMatmulDescOpaque_t>,
      .MatmulDescSetAttribute = SetOperation,
      .MatrixLayoutCreate =
          [](cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows, uint64_t columns,
             int64_t ld) {
            return Make(made, Layout{.type = type, .rows = rows, .columns = columns, .ld = ld});
          },
      .MatrixLayoutDestroy = Destroy<Layout, cublasLtMatrixLayoutOpaque_t>,
      .MatrixLayoutSetAttribute = SetLayout,
      .MatmulPreferenceCreate =
          [](cublasLtMatmulPreference_t* made) { return Make(made, Preference{}); },
      .MatmulPreferenceDestroy = Destroy<Preference, cublasLtMatmulPreferenceOpaque_t>,
      .MatmulPreferenceSetAttribute = SetPreference,
      .MatmulAlgoGetHeuristic = Propose,
      .MatmulAlgoCheck = CheckAlgorithm,
      .Matmul = Multiply,
  };
  return lt;
}

}  // namespace lathe::cuda
