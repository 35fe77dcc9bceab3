"""A header that GCC compiles once and then reads quickly for each of many sources."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)

    # Clang would write down the path of this action's sandbox. Then sources read the header itself.
    if toolchain.compiler == "clang":
        return [DefaultInfo(files = depset())]
    configuration = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    compiled = ctx.actions.declare_file(ctx.file.header.basename + ".gch", sibling = ctx.file.header)
    variables = cc_common.create_compile_variables(
        feature_configuration = configuration,
        cc_toolchain = toolchain,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts + ["-x", "c++-header"],
        source_file = ctx.file.header.path,
        output_file = compiled.path,
        use_pic = True,
    )
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = configuration,
            action_name = CPP_COMPILE_ACTION_NAME,
        ),
        arguments = cc_common.get_memory_inefficient_command_line(
            feature_configuration = configuration,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = configuration,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        inputs = depset([ctx.file.header] + ctx.files.included, transitive = [toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "PrecompileHeader",
        progress_message = "Compiling the header %s" % ctx.file.header.short_path,
    )
    return [DefaultInfo(files = depset([compiled]))]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "copts": attr.string_list(),
        # The compiler finds what this rule makes beside it, so it must be a generated file of the same package.
        "header": attr.label(allow_single_file = [".h"], mandatory = True),
        # Headers beside it that it includes.
        "included": attr.label_list(allow_files = [".h"]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
