// Tests a program that links the CUDA backend while LATHE_CUBLASLT names a file that doesn't exist.
#include "lathe/core/cuda/gemm/cublaslt_library.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/device_libraries_testing.h"
#include "lathe/core/kernels/gemm_kernels.h"
#include "lathe/core/ops/linear.h"

namespace lathe::cuda {
namespace {

std::string WhyNot(const std::vector<std::string>& files) {
  return WhyNotOpened(OpenCublasLt, files, {"libcublas-13-0", "LATHE_CUBLASLT"});
}

constexpr char kUnusable[] = "[cuda] matrix products on a GPU need cuBLASLt, which can't be used: ";

TEST(CublasLtLibrary, IsNotNeededToStartAndUseTheCpu) {
  EXPECT_FALSE(IsLoaded("libcublas"));
  EXPECT_FALSE(IsLoaded("libcudart"));
  ASSERT_NE(FindDeviceBackend(), nullptr);
  EXPECT_NO_THROW(FindDeviceBackend()->Count());
  EXPECT_NE(DeviceTable<GemmKernels>::table, nullptr);
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2});
  EXPECT_EQ(MatrixProduct(x, x).ToVector<float>(), (std::vector<float>{7, 10, 15, 22}));
  EXPECT_FALSE(IsLoaded("libcublas"));
}

TEST(CublasLtLibrary, TheFirstProductSaysThatItIsMissing) {
  try {
    CublasLt();
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), kUnusable + std::string("/nowhere/libcublasLt.so.13: cannot open shared "
                                                   "object file: No such file or directory"));
  }
  EXPECT_THROW(CublasLt(), Error);  // and on every further call
}

TEST(CublasLtLibrary, SaysWhichFilesAreMissing) {
  EXPECT_EQ(WhyNot({"libcublasLt-none.so.13", "/nowhere/libcublasLt.so.12"}),
            kUnusable + std::string("libcublasLt-none.so.13: cannot open shared object file: No "
                                    "such file or directory; /nowhere/libcublasLt.so.12: cannot "
                                    "open shared object file: No such file or directory"));
}

TEST(CublasLtLibrary, RefusesAnotherLibrary) {
  EXPECT_EQ(WhyNot({"libm.so.6"}),
            kUnusable + std::string("libm.so.6 has no cublasLtGetStatusString"));
}

TEST(CublasLtLibrary, TakesTheNewestUnlessAFileIsNamed) {
  EXPECT_EQ(CublasLtFiles(), std::vector<std::string>{"/nowhere/libcublasLt.so.13"});
  const std::string named = std::getenv("LATHE_CUBLASLT");
  unsetenv("LATHE_CUBLASLT");
  setenv("CUDA_PATH", "/opt/cuda", 1);
  const std::vector<std::string> files = CublasLtFiles();
  setenv("LATHE_CUBLASLT", named.c_str(), 1);
  EXPECT_EQ(files, (std::vector<std::string>{
                       "libcublasLt.so.13", "/opt/cuda/lib64/libcublasLt.so.13",
                       "/opt/cuda/lib/libcublasLt.so.13", "libcublasLt.so.12",
                       "/opt/cuda/lib64/libcublasLt.so.12", "/opt/cuda/lib/libcublasLt.so.12"}));
  unsetenv("CUDA_PATH");
}

// The library can be opened and can describe products without a GPU. Only computing them needs one.
TEST(CublasLtLibrary, FindsAllFunctions) {
  unsetenv("LATHE_CUBLASLT");
  CublasLtLibrary lt;
  try {
    lt = OpenCublasLt(CublasLtFiles());
  } catch (const Error& e) {
    GTEST_SKIP() << e.message();  // built with cuBLASLt's header, but the library is missing
  }
  EXPECT_NE(std::string(lt.GetStatusString(CUBLAS_STATUS_INVALID_VALUE)), "");
  EXPECT_GE(lt.GetVersion(), 120000u);
  cublasLtMatmulDesc_t operation = nullptr;
  ASSERT_EQ(lt.MatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  const uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
  EXPECT_EQ(lt.MatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                      sizeof(epilogue)),
            CUBLAS_STATUS_SUCCESS);
  const uint32_t bias_gradient = CUBLASLT_EPILOGUE_BGRADB;
  EXPECT_EQ(lt.MatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias_gradient,
                                      sizeof(bias_gradient)),
            CUBLAS_STATUS_SUCCESS);
  const int32_t type = CUDA_R_16BF;
  EXPECT_EQ(lt.MatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type,
                                      sizeof(type)),
            CUBLAS_STATUS_SUCCESS);
  const int32_t transposed = CUBLAS_OP_T;
  EXPECT_EQ(lt.MatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                      sizeof(transposed)),
            CUBLAS_STATUS_SUCCESS);
  const int64_t bias_stride = 8;
  EXPECT_EQ(lt.MatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE,
                                      &bias_stride, sizeof(bias_stride)),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(lt.MatmulDescDestroy(operation), CUBLAS_STATUS_SUCCESS);
  cublasLtMatrixLayout_t layout = nullptr;
  ASSERT_EQ(lt.MatrixLayoutCreate(&layout, CUDA_R_16BF, 8, 8, 8), CUBLAS_STATUS_SUCCESS);
  const int32_t batch = 2;
  const int64_t stride = 64;
  EXPECT_EQ(lt.MatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                        sizeof(batch)),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(lt.MatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                        &stride, sizeof(stride)),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(lt.MatrixLayoutDestroy(layout), CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulPreference_t preference = nullptr;
  ASSERT_EQ(lt.MatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
  const uint32_t mask = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, alignment = 2;
  EXPECT_EQ(lt.MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                            &mask, sizeof(mask)),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(lt.MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                                            &alignment, sizeof(alignment)),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(lt.MatmulPreferenceDestroy(preference), CUBLAS_STATUS_SUCCESS);
}

}  // namespace
}  // namespace lathe::cuda
