"""Finds CUDA, cuBLASLt, cuDNN and NCCL on this machine. `@lathe_cuda` exists without them, too.

  load("@lathe_cuda//:defs.bzl", "if_nccl")
  srcs = if_nccl(["nccl_group.cc"], [])
  deps = if_nccl(["@lathe_cuda//:cudart"], [])

Kernels are compiled for the architectures in LATHE_CUDA_ARCHS ("80;86;90"; 90 if it is not set).
CUDA is looked for in the folder that CUDA_PATH names, or in /usr/local/cuda if it is not set. The headers of NCCL and
cuDNN may be there or in the system's folders. The header of cuBLASLt comes with CUDA; without it no kernels are built
(if_cuda). With LATHE_CUDA=0 (--config=cpu) CUDA isn't looked for. One line of the build's output says what was found.
"""

_LIBRARY_FOLDERS = ["lib64", "lib", "targets/x86_64-linux/lib"]

_NCCL_HEADERS = ["/usr/include/nccl.h", "/usr/local/include/nccl.h"]

_CUDNN_HEADERS = ["/usr/include/cudnn_graph.h", "/usr/include/x86_64-linux-gnu/cudnn_graph.h", "/usr/local/include/cudnn_graph.h"]

# The runtime is linked statically: every installation has the static library, and a program starts without
# any of CUDA's libraries. The runtime opens the driver's library (libcuda.so.1) at the first call. A program
# has only one copy of it, as device code needs.
_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob([
        "include/*.h",
        "include/*.hpp",
        "include/crt/*",
    ]),
    includes = ["include"],
)

cc_library(
    name = "cudart",
    srcs = ["libcudart_static.a"],
    linkopts = [
        "-ldl",
        "-lpthread",
        "-lrt",
    ],
    deps = [":headers"],
)
"""

_DEFS = """
NVCC = "{nvcc}"

# GPU architectures that kernels are compiled for: "90" is compute capability 9.0.
ARCHS = {archs}

def if_cuda(then, otherwise):
    return {cuda}

def if_cudnn(then, otherwise):
    return {cudnn}

def if_nccl(then, otherwise):
    return {nccl}
"""

def _find_runtime(repository_ctx, root):
    """Returns the path of the static runtime, or None if it or its headers are missing."""
    if not repository_ctx.path(root + "/include/cuda_runtime_api.h").exists:
        return None
    for folder in _LIBRARY_FOLDERS:
        library = repository_ctx.path(root + "/" + folder + "/libcudart_static.a")
        if library.exists:
            return library
    return None

def _any_exists(repository_ctx, paths):
    return bool([path for path in paths if repository_ctx.path(path).exists])

def _cuda_repository_impl(repository_ctx):
    root = repository_ctx.os.environ.get("CUDA_PATH", "") or "/usr/local/cuda"
    archs = repository_ctx.os.environ.get("LATHE_CUDA_ARCHS", "") or "90"
    archs = archs.replace(",", ";").split(";")
    for arch in archs:
        digits = arch.rstrip("af")
        if not digits.isdigit() or int(digits) < 80:
            fail("LATHE_CUDA_ARCHS: \"%s\" is not a compute capability of 8.0 or higher; write 80, 90 or 90a, and put ; between several" % arch)
    wanted = repository_ctx.os.environ.get("LATHE_CUDA", "") != "0"
    runtime = _find_runtime(repository_ctx, root) if wanted else None
    cublaslt, cudnn, nccl = False, False, False
    if runtime:
        cublaslt = repository_ctx.path(root + "/include/cublasLt.h").exists
        cudnn = cublaslt and _any_exists(repository_ctx, [root + "/include/cudnn_graph.h"] + _CUDNN_HEADERS)
        nccl = _any_exists(repository_ctx, [root + "/include/nccl.h"] + _NCCL_HEADERS)
        repository_ctx.symlink(root + "/include", "include")
        repository_ctx.symlink(runtime, "libcudart_static.a")
        print("CUDA in %s: building %s, %s, %s" % (
            root,
            "for the CPU and GPUs of " + ", ".join(["sm_" + arch for arch in archs]) if cublaslt else "tensors for the CPU only (no cublasLt.h)",
            "with cuDNN" if cudnn else "without cuDNN (no cudnn_graph.h there or in the system's folders)",
            "with NCCL" if nccl else "without NCCL (no nccl.h there or in the system's folders)",
        ))
    elif wanted:
        print("no CUDA found in %s (set CUDA_PATH to look elsewhere): building for the CPU only" % root)
    else:
        print("LATHE_CUDA=0: building for the CPU only")
    repository_ctx.file("BUILD.bazel", _BUILD if runtime else "")
    repository_ctx.file("defs.bzl", _DEFS.format(
        nvcc = root + "/bin/nvcc",
        archs = archs,
        cuda = "then" if cublaslt else "otherwise",
        cudnn = "then" if cudnn else "otherwise",
        nccl = "then" if nccl else "otherwise",
    ))

# The machine's files may change while CUDA_PATH doesn't, so each new Bazel server looks again.
cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    environ = ["CUDA_PATH", "LATHE_CUDA", "LATHE_CUDA_ARCHS"],
    local = True,
    configure = True,
)
