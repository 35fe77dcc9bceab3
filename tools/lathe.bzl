"""Rules for Lathe's own C++ targets: warnings, OpenMP and the `lathe/` include prefix in one place."""

_COPTS = ["-Wall", "-Wextra", "-Wshadow", "-Werror", "-fopenmp"]
# By the build id the ranks of a job check that they run the same program.
_LINKOPTS = ["-fopenmp", "-Wl,--build-id=sha1"]

def lathe_cc_library(name, copts = [], **kwargs):
    """A library whose headers are included as "lathe/<package>/<file>.h"."""
    native.cc_library(
        name = name,
        copts = _COPTS + copts,
        include_prefix = "lathe",
        strip_include_prefix = "/",
        linkopts = _LINKOPTS,
        visibility = ["//visibility:public"],
        **kwargs
    )

def lathe_cc_binary(name, **kwargs):
    native.cc_binary(
        name = name,
        copts = _COPTS,
        linkopts = _LINKOPTS,
        visibility = ["//visibility:public"],
        **kwargs
    )

def lathe_cc_test(name, deps = [], **kwargs):
    """A GoogleTest program with the library's main.

    The libraries under test are compiled as they are for programs. The test's own source need not be fast: -O1 compiles
    in three quarters of the time.
    """
    native.cc_test(
        name = name,
        copts = _COPTS + ["-O1"],
        linkopts = _LINKOPTS,
        deps = deps + [Label("//tools/third_party:gtest_main")],
        visibility = ["//visibility:public"],
        **kwargs
    )

# Maps the number of an instruction set level to compiler flags; see core/cpu/isa.h.
_ISA = {
    2: ["-march=x86-64-v2"],
    3: ["-march=x86-64-v3"],
    4: ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    5: ["-march=x86-64-v4", "-mavx512bf16", "-mprefer-vector-width=512"],
}

# All instruction set levels.
CPU_LEVELS = _ISA.keys()

def lathe_cpu_kernels(name, srcs, hdrs, deps):
    """Compiles kernel sources once for each instruction set level, with LATHE_ISA set to the level.

    A kernel source defines `TableOf<SomeKernels, LATHE_ISA>` and keeps everything else in an unnamed
    namespace, so that no function compiled for one level can be linked into another.
    """
    native.cc_library(
        name = name + "_headers",
        hdrs = hdrs,
        include_prefix = "lathe",
        strip_include_prefix = "/",
        deps = deps,
    )
    for level, flags in _ISA.items():
        native.cc_library(
            name = "%s_v%d" % (name, level),
            srcs = srcs,
            # -Wno-psabi: vectors wider than a register pass between inlined functions only.
            copts = _COPTS + flags + ["-O3", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", "-DLATHE_ISA=%d" % level],
            deps = [name + "_headers"],
            alwayslink = True,
        )
    native.cc_library(
        name = name,
        linkopts = _LINKOPTS,
        visibility = ["//visibility:public"],
        deps = [name + "_headers"] + ["%s_v%d" % (name, level) for level in _ISA],
    )
