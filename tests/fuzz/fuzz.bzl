"""The rule for a fuzzer: a test of its corpus, and libFuzzer's program."""

load("//tools:lathe.bzl", "lathe_cc_library", "lathe_cc_test")

def lathe_fuzzer(name, deps, src = None, local_defines = [], runs = None, size = "small", tags = []):
    """Makes <name>_corpus_test and <name>_fuzzer of a source that defines ReadInput (fuzzer.h).

    The test is one as all others are. The program needs clang, so it is built by tools/fuzz.sh only.

    Args:
      name: The format. Its inputs lie in corpus/<name>.
      deps: What the source includes, but for fuzzer.h.
      src: The source in formats/, if it is not <name>_fuzzer.cc.
      local_defines: Macros for the source.
      runs: The number of changed inputs in the test, if it is not the usual one.
      size: Of the test.
      tags: Further tags of the program. "by_name" makes tools/fuzz.sh run it only if it is named.
    """
    lathe_cc_library(
        name = name + "_reader",
        testonly = True,
        srcs = ["formats/" + (src or name + "_fuzzer.cc")],
        local_defines = local_defines,
        deps = deps + [
            ":fuzzer",
            "//core/base:error",
        ],
    )
    env = {"LATHE_FUZZ_CORPUS": native.package_name() + "/corpus/" + name}
    if runs != None:
        env["LATHE_FUZZ_RUNS"] = str(runs)
    lathe_cc_test(
        name = name + "_corpus_test",
        size = size,
        data = native.glob(["corpus/%s/*" % name]),
        env = env,
        deps = [
            ":%s_reader" % name,
            ":corpus_test",
        ],
    )
    native.cc_binary(
        name = name + "_fuzzer",
        testonly = True,
        srcs = ["one_input.cc"],
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"] + tags,
        deps = [
            ":%s_reader" % name,
            ":fuzzer",
            "//core/base:error",
        ],
    )
