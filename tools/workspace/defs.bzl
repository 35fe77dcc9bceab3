"""Defines what a workspace that builds Lathe needs before anything else is loaded.

Debian's Bazel reports no version and comes without the repositories that Bazel's own defaults name, so
they are bound to local ones. A stock Bazel uses its real rules. Both get `@lathe_cuda`.
"""

load(":cuda.bzl", "cuda_repository")

def lathe_workspace(root = "."):
    """Finds CUDA, and defines the repositories that Debian's Bazel would otherwise try to download.

    Args:
      root: path of Lathe's source tree, relative to the calling workspace.
    """
    cuda_repository(name = "lathe_cuda")
    if native.bazel_version:
        return
    native.local_repository(name = "rules_java", path = "/usr/share/bazel/rules/java")
    native.local_repository(name = "rules_cc", path = root + "/tools/workspace/rules_cc")
    native.local_repository(
        name = "remote_coverage_tools",
        path = root + "/tools/workspace/remote_coverage_tools",
    )
