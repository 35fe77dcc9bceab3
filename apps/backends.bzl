"""What the programs compute with."""

# (suffix of a program's name, libraries): GPUs where there are any; for tests without a GPU, emulated ones.
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
