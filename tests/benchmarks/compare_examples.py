"""Times two of the examples beside the same programs with PyTorch, in turns, and prints samples a second.

    bazel build //examples:table_mlp //examples:text_convolution
    python tests/benchmarks/compare_examples.py --tokenizer DIR --train TRAIN.tsv --eval EVAL.tsv

DIR holds a BERT's vocab.txt, and the files have the columns "sentence" and "label". The table of numbers is made here:
8 columns and --rows rows. A rate is of epochs 2 to 5, with their evaluations: from one line "epoch ..." to the other. So
no figure includes a start. PyTorch runs with its DataLoader and, as "lean", with batches picked out of tensors.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import h5py
import numpy


def write_table(path, rows, seed):
    centers = numpy.random.default_rng(1).normal(size=(6, 8))
    random = numpy.random.default_rng(seed)
    points = random.integers(0, 6, rows)
    with h5py.File(path, "w") as file:
        file["inputs"] = (centers[points] + 0.4 * random.normal(size=(rows, 8))).astype("float32")
        file["targets"] = (points % 3).astype("int64")


def seconds_of_epochs(command, environment):
    """Runs a program and returns the seconds from its first line "epoch ..." to its last, and that line."""
    times, last = [], ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        for line in process.stdout:
            if line.startswith("epoch"):
                times.append(time.perf_counter())
                last = line.strip()
    if process.returncode != 0:
        sys.exit(f"{command[0]} failed")
    return times[-1] - times[0], last


def num_rows(path):
    with open(path, encoding="utf-8") as file:
        return sum(1 for _ in file) - 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default="bazel-bin/examples", help="the folder of the examples' programs")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--train", required=True)
    parser.add_argument("--eval", required=True)
    parser.add_argument("--rows", type=int, default=20000, help="of the table to train on")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=["table_mlp", "text_convolution"])
    a = parser.parse_args()
    environment = os.environ | {"OMP_NUM_THREADS": str(a.threads)}
    peers = pathlib.Path(__file__).with_name("example_peers.py")
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        write_table(root / "train.h5", a.rows, 2)
        write_table(root / "eval.h5", a.rows // 10, 3)
        # The example wants a tokenizer's folder that says how to treat case.
        shutil.copy(pathlib.Path(a.tokenizer) / "vocab.txt", root / "vocab.txt")
        (root / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True}))
        (root / "config.json").write_text(json.dumps({"model_type": "bert"}))
        cases = {"table_mlp": ([root / "train.h5", root / "eval.h5"], a.rows, a.rows // 10),
                 "text_convolution": ([root, a.train, a.eval], num_rows(a.train), num_rows(a.eval))}
        print("| program | samples/s, Lathe | PyTorch | PyTorch, lean | ratio | ratio to lean |\n|---|---|---|---|---|---|")
        for name, (files, train_rows, eval_rows) in cases.items():
            if a.only not in (None, name):
                continue
            files = [str(file) for file in files]
            peer = [sys.executable, str(peers), name, *files, "--threads", str(a.threads)]
            commands = {"lathe": [str(pathlib.Path(a.programs) / name), *files], "loader": peer, "lean": peer + ["--lean"]}
            rates = {side: [] for side in commands}
            for _ in range(a.rounds):
                for side, command in commands.items():
                    seconds, last = seconds_of_epochs(command, environment)
                    rates[side].append(4 * (train_rows + eval_rows) / seconds)
                    print(f"{name} {side}: {last}", file=sys.stderr)
            ratio = lambda side: statistics.median(ours / theirs for ours, theirs in zip(rates["lathe"], rates[side]))
            medians = {side: statistics.median(values) for side, values in rates.items()}
            print(f"| {name} | {medians['lathe']:,.0f} | {medians['loader']:,.0f} | {medians['lean']:,.0f} | "
                  f"{ratio('loader'):.2f} | {ratio('lean'):.2f} |")


if __name__ == "__main__":
    main()
