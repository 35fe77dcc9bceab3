"""Rules for Lathe's own C++ targets: warnings, OpenMP and the `lathe/` include prefix in one place."""

SOURCE_COPTS = ["-Wall", "-Wextra", "-Wshadow", "-Werror", "-fopenmp"]

# Folders whose sources call others for what takes time. -O1 compiles them in three quarters of the time.
_CALLERS = ["apps", "core/hub", "core/trackers", "examples", "models", "nn", "train"]

# How their sources are compiled.
CALLER_COPTS = SOURCE_COPTS + ["-O1"]

# The ranks of a job compare their build ids to check that they run the same program.
_LINKOPTS = ["-fopenmp", "-Wl,--build-id=sha1"]

# How sources of tests are compiled. They need not be fast, and -O0 takes two thirds of the time.
TEST_SOURCE_COPTS = SOURCE_COPTS + ["-O0"]

# Headers with which sources begin, and which are compiled once for all of them.
PRELUDE = Label("//tools/prelude")
_CALLER_PRELUDE = Label("//tools/prelude:caller_prelude")
_TEST_PRELUDE = Label("//tools/prelude:test_prelude")

# From a compiled header, GCC warns of what inlined functions of the standard library seem to do, which it keeps to itself
# otherwise. GCC 12 is wrong about strings that are moved.
_PRELUDE_COPTS = ["-Wno-array-bounds", "-Wno-restrict", "-Wno-stringop-overflow", "-Wno-stringop-overread"]

def _include(prelude):
    """The options for a source that begins with a header of tools/prelude."""
    folders = ["$(BINDIR)", prelude.workspace_root, prelude.package]
    return ["-include", "/".join([folder for folder in folders if folder] + [prelude.name + ".h"])]

def _defaults():
    """How the package's sources are compiled, and the header with which they begin."""
    if any([(native.package_name() + "/").startswith(folder + "/") for folder in _CALLERS]):
        return CALLER_COPTS, _CALLER_PRELUDE
    return SOURCE_COPTS, PRELUDE

def lathe_cc_library(name, copts = [], deps = [], prelude = None, **kwargs):
    """A library whose headers are included as "lathe/<package>/<file>.h".

    Args:
      name: The library's name.
      copts: More options for the compiler.
      deps: What its sources include.
      prelude: The header of tools/prelude with which its sources begin, compiled with the same options. False for none.
        By default it is the libraries' if `copts` is empty.
      **kwargs: As in cc_library.
    """
    source_copts, default_prelude = _defaults()
    if prelude == None and not copts:
        prelude = default_prelude
    native.cc_library(
        name = name,
        copts = source_copts + (_include(prelude) + _PRELUDE_COPTS if prelude else []) + copts,
        include_prefix = "lathe",
        strip_include_prefix = "/",
        linkopts = _LINKOPTS,
        visibility = ["//visibility:public"],
        deps = deps + ([prelude] if prelude else []),
        **kwargs
    )

def lathe_cc_binary(name, deps = [], **kwargs):
    source_copts, prelude = _defaults()
    native.cc_binary(
        name = name,
        copts = source_copts + _include(prelude) + _PRELUDE_COPTS,
        linkopts = _LINKOPTS,
        visibility = ["//visibility:public"],
        deps = deps + [prelude],
        **kwargs
    )

# A program of tests takes ten parts of the processor, a script one. tools/test.sh says how many parts all have at a time.
# These differ:
_PARTS = {
    # They mostly wait.
    "apps/lathe/launch:launch_test": 1,
    "apps/testing:joining_faults_test": 1,
    "distributed/groups/nccl:nccl_emulated_test": 1,
    "distributed/groups/nccl:nccl_group_logic_test": 1,
    "distributed/groups:process_group_faults_test": 1,
    "distributed/job:silent_rank_test": 1,
    "distributed/launch:launch_signals_test": 1,
    "distributed/launch:launch_test": 1,
    "distributed/liveness:peer_watch_test": 1,
    "distributed/liveness:who_reports_test": 1,
    "distributed/rendezvous:store_connection_test": 1,
    "distributed:accelerator_faults_test": 1,
    "tests/hub:hub_hosts_test": 1,
    "tests/hub:hub_test": 1,
    "train:trainer_ranks_test": 1,
    "train:trainer_resume_anyway_test": 1,
    # This one waits for two thirds of its time, and is the longest.
    "apps/testing:machine_faults_test": 3,
    # They wait for more than half of their time.
    "apps/testing:checkpoint_faults_test": 8,
    "apps/testing:lone_work_faults_test": 8,
    "apps/testing:process_faults_test": 8,
    "apps/testing:two_machines_test": 8,
    "distributed/groups:machines_test": 8,
    # Up to 16 ranks must keep up with their links.
    "distributed/groups:machines_network_test": 20,
}

def _share(name = None):
    return "cpu:%d" % _PARTS.get("%s:%s" % (native.package_name(), name), 10)

def lathe_cc_test(name, deps = [], copts = [], tags = [], **kwargs):
    """A GoogleTest program with the library's main.

    The libraries under test are compiled as they are for programs.
    """
    native.cc_test(
        name = name,
        copts = TEST_SOURCE_COPTS + _include(_TEST_PRELUDE) + copts,
        linkopts = _LINKOPTS,
        tags = tags + [_share(name)],
        deps = deps + [_TEST_PRELUDE, Label("//tools/third_party:gtest_main")],
        visibility = ["//visibility:public"],
        **kwargs
    )

# Maps the number of an instruction set level to compiler flags; see core/base/isa.h.
_ISA = {
    2: ["-march=x86-64-v2"],
    3: ["-march=x86-64-v3"],
    4: ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    5: ["-march=x86-64-v4", "-mavx512bf16", "-mprefer-vector-width=512"],
}

# All instruction set levels.
CPU_LEVELS = _ISA.keys()

def _test_cases(name, srcs, deps):
    """A library of test cases, which several programs link."""
    lathe_cc_library(
        name = name,
        testonly = True,
        srcs = srcs,
        alwayslink = True,
        copts = ["-O0"],
        prelude = _TEST_PRELUDE,
        deps = deps + [Label("//tools/third_party:gtest")],
    )

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
        visibility = ["//visibility:public"],
        deps = deps,
    )
    for level, flags in _ISA.items():
        native.cc_library(
            name = "%s_v%d" % (name, level),
            srcs = srcs,
            # -Wno-psabi: vectors wider than a register pass between inlined functions only.
            copts = SOURCE_COPTS + flags + ["-O3", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", "-DLATHE_ISA=%d" % level],
            visibility = ["//visibility:public"],
            deps = [name + "_headers"],
            alwayslink = True,
        )
    native.cc_library(
        name = name,
        linkopts = _LINKOPTS,
        visibility = ["//visibility:public"],
        deps = [name + "_headers"] + ["%s_v%d" % (name, level) for level in _ISA],
    )

def lathe_level_tests(name, test):
    """Runs a test as on processors of other levels, as <name>_levels: x86-64-v2, AVX2, AVX-512 and AVX512-BF16.

    Kernels and products are then those of the level. A level that this processor lacks is skipped, and so is its own, at
    which the test itself runs. `--test_arg=2` runs x86-64-v2 alone.
    """
    native.sh_test(
        name = name + "_levels",
        srcs = [Label("//tests:with_isa.sh")],
        args = ["$(rootpath %s)" % test],
        tags = [_share()],
        data = [test],
    )

# Tags of the program for the emulated device that runs what another runs under AddressSanitizer. It serves debuggers.
PLAIN_EMULATED_TAGS = ["manual"]

# How kernels that the emulator runs are compiled for AddressSanitizer, as with --config=asan in .bazelrc.
ASAN_COPTS = ["-O1", "-fsanitize=address", "-fno-omit-frame-pointer", "-Wno-maybe-uninitialized"]
ASAN_PRELUDE = Label("//tools/prelude:asan_prelude")

# For tests of these kernels. Blocks and threads run in reverse order, because no result may depend on it. Reports show
# three frames of where memory was allocated: to note more took 7 % of the tests' time.
ASAN_ENV = {
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:malloc_context_size=3",
    "LATHE_EMULATOR_ORDER": "reverse",
}

# For tests that run blocks and threads in a shuffled order. The number is a seed.
SHUFFLED_ENV = {"LATHE_EMULATOR_ORDER": "7"}

def lathe_device_tests(name, srcs, deps, both = [], gpu = [], emulated = [], programs = ["gpu", "emulated", "asan"], shuffled = False, env = {}, **kwargs):
    """Runs the same cases on a GPU (<name>_gpu_test, skipped where there is none) and on the emulated device.

    The cases are compiled once, as <name>_cases. The other programs are <name>_emulated_test, and
    <name>_emulated_asan_test, whose kernels run in reverse order under AddressSanitizer. If there are both, //... has
    only the second, unless the first is shuffled.

    Args:
      name: Begins the names of the targets.
      srcs: The tests' sources.
      deps: What these include.
      both: What both programs link besides.
      gpu: What the program for a GPU links besides these and the CUDA backend.
      emulated: What <name>_emulated_test links besides these and the emulated backend.
      programs: Which of "gpu", "emulated" and "asan" there are.
      shuffled: True if <name>_emulated_test runs blocks and threads in a shuffled order.
      env: For all programs, as in cc_test.
      **kwargs: The same.
    """
    _test_cases(
        name = name + "_cases",
        srcs = srcs,
        deps = deps,
    )
    for key, where, backend, more_env in [
        ("gpu", "gpu", [Label("//core:cuda")] + gpu, {}),
        ("emulated", "emulated", [Label("//tests/emulator:cuda")] + emulated, SHUFFLED_ENV if shuffled else {}),
        ("asan", "emulated_asan", [Label("//tests/emulator:cuda_asan")], ASAN_ENV),
    ]:
        if key in programs:
            lathe_cc_test(
                name = "%s_%s_test" % (name, where),
                linkstatic = True,
                tags = PLAIN_EMULATED_TAGS if key == "emulated" and "asan" in programs and not shuffled else [],
                deps = [":%s_cases" % name] + both + backend,
                env = dict(env, **more_env),
                **kwargs
            )

def lathe_op(name, more_tests = [], host_tests = [], levels = False):
    """A differentiable op, for the list in lathe_ops.

    The op is ops/<name>.h and ops/<name>.cc; ops/<name>_test.cc tests it. Its kernels are found where they are:
    cpu/*.cc, cuda/*.cu and the headers of their tables. The same cases are linked into four programs, which run them
    on the host, on a GPU (ops/<name>_gpu_test, skipped where there is none), on the emulated device
    (ops/<name>_emulated_test), and there in reverse order under AddressSanitizer (ops/<name>_emulated_asan_test). Those
    for devices serve developers: //... leaves them out, because lathe_ops has the cases of all ops in two programs.

    Args:
      name: The op's name. It may have a folder, as in "norm/rms_norm".
      more_tests: Further tests of it, by the name of their source without `_test.cc`.
      host_tests: The same for tests that run on the host only.
      levels: True for an op with kernels or products of the CPU. Then its tests on the host run at each instruction
        set level, too: ops/<name>_test_levels (lathe_level_tests).

    Returns:
      What lathe_ops takes: the name, and the names of the tests that run on devices.
    """
    for test in [name] + more_tests + host_tests:
        _test_cases(
            name = "ops/%s_cases" % test,
            srcs = ["ops/%s_test.cc" % test],
            deps = [
                ":ops",
                Label("//core/base:working_memory"),
                Label("//tests:check_op_interface"),
            ],
        )
        lathe_cc_test(
            name = "ops/%s_test" % test,
            linkstatic = True,
            deps = [
                ":ops/%s_cases" % test,
                Label("//tests:check_op"),
            ],
        )
        if levels:
            lathe_level_tests(name = "ops/%s_test" % test, test = ":ops/%s_test" % test)
    for test in [name] + more_tests:
        _op_tests_on_devices("ops/%s" % test, [test], tags = ["manual"])
    return struct(name = name, tests = [name] + more_tests)

def _op_tests_on_devices(name, tests, where = ["gpu", "emulated", "emulated_asan"], **kwargs):
    """Programs <name>_gpu_test and so on with the cases of these tests of ops."""
    for key, backend, env in [
        ("gpu", ":cuda", {}),
        ("emulated", Label("//tests/emulator:cuda"), {}),
        ("emulated_asan", Label("//tests/emulator:cuda_asan"), ASAN_ENV),
    ]:
        if key in where:
            lathe_cc_test(
                name = "%s_%s_test" % (name, key),
                env = env,
                linkstatic = True,
                deps = [":ops/%s_cases" % test for test in tests] + [
                    backend,
                    Label("//tests:check_op_on_device"),
                ],
                **kwargs
            )

def lathe_ops(name, ops, srcs, hdrs, deps):
    """The library of all ops, with the header ops/<name>.h that includes those of all ops.

    The cases of all ops' tests run on a GPU (ops/all_ops_gpu_test) and, under AddressSanitizer, on the emulated device
    (ops/all_ops_emulated_asan_test).

    Args:
      name: The library's name.
      ops: What lathe_op returned, for each op.
      srcs: Sources that ops share.
      hdrs: Headers that ops share.
      deps: What the ops need.
    """
    umbrella = "ops/%s.h" % name
    lines = ["// All ops: each has a line in %s/BUILD.bazel." % native.package_name(), "#pragma once", ""]
    lines += ['#include "lathe/%s/ops/%s.h"' % (native.package_name(), op.name) for op in ops]
    native.genrule(
        name = name + "_header",
        outs = [umbrella],
        cmd = "printf '%%s\\n' %s > $@" % " ".join(["'%s'" % line for line in lines]),
    )
    lathe_cc_library(
        name = name,
        srcs = srcs + ["ops/%s.cc" % op.name for op in ops],
        hdrs = hdrs + ["ops/%s.h" % op.name for op in ops] + [umbrella],
        deps = deps,
    )
    tests = [test for op in ops for test in op.tests]
    _op_tests_on_devices("ops/all_ops", tests, where = ["gpu"])
    _op_tests_on_devices("ops/all_ops", tests, where = ["emulated_asan"], shard_count = 4)
