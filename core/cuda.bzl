"""What the CUDA backend consists of, for its two builds: with nvcc, and emulated for tests."""

# Sources that only call the runtime.
CUDA_SOURCES = [
    "cuda/attention/attention_dispatch.cc",
    "cuda/runtime/device.cc",
    "cuda/runtime/shared_memory.cc",
]

# Sources that call CUDA's libraries. The emulator has sources of its own instead.
CUDA_LIBRARY_SOURCES = [
    "cuda/gemm/gemm.cc",
    "cuda/gemm/gemm_plan.cc",
]

# Headers that include those of the libraries.
CUDA_LIBRARY_HEADERS = [
    "cuda/gemm/cublaslt_library.h",
    "cuda/gemm/gemm_plan.h",
]

# The same for cuDNN, whose headers may be missing where CUDA's are not.
CUDNN_HEADERS = [
    "cuda/attention/attention_cudnn_graph.h",
    "cuda/cudnn/cudnn_graph.h",
    "cuda/cudnn/cudnn_library.h",
]

# Sources that know nothing of CUDA.
CUDA_HOST_SOURCES = [
    "cuda/attention/attention_shape.cc",
    "cuda/gemm/gemm_problem.cc",
    "cuda/gemm/gemm_tuning.cc",
    "cuda/runtime/pool.cc",
    "cuda/runtime/staging.cc",
]

CUDA_HOST_HEADERS = [source.replace(".cc", ".h") for source in CUDA_HOST_SOURCES]
