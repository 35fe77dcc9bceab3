"""What the programs compute with."""

# Each program is built once for each of these: (the suffix of its name, the libraries that it links). The first can use
# GPUs. The second has the emulated device, for tests without a GPU.
PROGRAM_BACKENDS = [
    ("", [
        "//core:cuda",
        "//distributed/groups/nccl:nccl_group",
    ]),
    ("_emulated", [
        "//tests/emulator:cuda",
        "//tests/emulator:nccl",
    ]),
]
