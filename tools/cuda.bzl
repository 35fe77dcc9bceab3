"""Compiles .cu files: with nvcc for GPUs, and with the host's compiler for the emulator of tests/emulator/."""

load("@lathe_cuda//:defs.bzl", "ARCHS", "NVCC")
load(":lathe.bzl", "lathe_cc_library")

# The oldest supported GPUs. What compiles for them compiles for all later ones: no kernel looks at __CUDA_ARCH__.
_OLDEST_ARCH = "80"

def _cuda_objects_impl(ctx):
    compilation = cc_common.merge_cc_infos(direct_cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
    arguments = ["-std=c++20", "--expt-relaxed-constexpr", "--extended-lambda", "-Xcompiler=-fPIC,-Wall,-Wno-unknown-pragmas", "-DNDEBUG"]

    # Code that nothing runs compiles in a quarter of the time without optimization, and is a test that the kernels
    # compile for the oldest GPUs.
    unoptimized = ctx.attr.only_device_code or ctx.var.get("lathe_kernels") == "unoptimized"
    archs = [_OLDEST_ARCH] if unoptimized else ARCHS
    arguments += ["-O0", "-Xcicc=-O0", "-Xptxas=-O0"] if unoptimized else ["-O3"]
    if ctx.attr.only_device_code:
        arguments += ["-cubin", "-arch=sm_" + _OLDEST_ARCH]
    else:
        # Device code for each architecture, and code that the driver can compile for later ones.
        for arch in archs:
            arguments.append("-gencode=arch=compute_%s,code=sm_%s" % (arch, arch))
        arguments.append("-gencode=arch=compute_%s,code=compute_%s" % (archs[-1], archs[-1]))
    for folder in compilation.includes.to_list() + compilation.quote_includes.to_list() + compilation.system_includes.to_list():
        arguments.append("-I" + folder)
    objects = []
    for source in ctx.files.srcs:
        suffix = "cubin" if ctx.attr.only_device_code else "pic.o"
        out = ctx.actions.declare_file("%s_objects/%s.%s" % (ctx.label.name, source.basename, suffix))
        ctx.actions.run_shell(
            command = 'export PATH=/usr/bin:/bin; exec "$@"',
            arguments = [NVCC] + arguments + ["-c", source.path, "-o", out.path],
            inputs = depset([source], transitive = [compilation.headers]),
            outputs = [out],
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s for GPUs" % source.short_path,
        )
        objects.append(out)
    return [DefaultInfo(files = depset(objects))]

_cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "deps": attr.label_list(providers = [CcInfo]),
        # True to compile only device code, for the oldest GPUs, and not the host's part of the sources.
        "only_device_code": attr.bool(),
    },
)

def lathe_cuda_library(name, cu_srcs, srcs, deps, **kwargs):
    """A library of kernels in .cu files and of sources that call CUDA's libraries. Always linked."""
    _cuda_objects(
        name = name + "_kernels",
        srcs = cu_srcs,
        deps = deps,
    )

    # Tests that the kernels compile for the oldest GPUs if the build is for others.
    _cuda_objects(
        name = name + "_kernels_sm_80",
        srcs = cu_srcs,
        deps = deps,
        only_device_code = True,
        tags = ["manual"],
    )
    lathe_cc_library(
        name = name,
        srcs = srcs + [name + "_kernels"],
        deps = deps,
        local_defines = select({
            str(Label("//tools:unoptimized_kernels")): ['LATHE_CUDA_ARCHS=\\"sm_%s\\ (not\\ optimized)\\"' % _OLDEST_ARCH],
            "//conditions:default": ['LATHE_CUDA_ARCHS=\\"%s\\"' % ",".join(["sm_" + arch for arch in ARCHS])],
        }),
        alwayslink = True,
        # Links with the static runtime, of which a program must have only one copy.
        linkstatic = True,
        **kwargs
    )

def lathe_no_cuda_library(name, cu_srcs, srcs, deps, **kwargs):
    """Stands in for lathe_cuda_library if there is no CUDA."""
    lathe_cc_library(name = name)

def _host_sources_impl(ctx):
    sources = []
    for source in ctx.files.srcs:
        copy = ctx.actions.declare_file("%s/%s.cc" % (ctx.label.name, source.basename))
        ctx.actions.symlink(output = copy, target_file = source)
        sources.append(copy)
    return [DefaultInfo(files = depset(sources))]

# Names .cu files .cc, so that the host's compiler takes them.
_host_sources = rule(
    implementation = _host_sources_impl,
    attrs = {"srcs": attr.label_list(allow_files = [".cu"])},
)

def lathe_emulated_library(name, cu_srcs, srcs, deps, copts = [], **kwargs):
    """Compiles the sources of lathe_cuda_library for the emulator, which must be in `deps`. `prelude` suits `copts`."""
    _host_sources(
        name = name + "_sources",
        srcs = cu_srcs,
    )
    lathe_cc_library(
        name = name,
        srcs = srcs + [name + "_sources"],
        # The emulator ignores "#pragma unroll" and __launch_bounds__, so a constant only for these is unused.
        copts = ["-Wno-unknown-pragmas", "-Wno-unused-const-variable"] + copts,
        deps = deps,
        alwayslink = True,
        **kwargs
    )
