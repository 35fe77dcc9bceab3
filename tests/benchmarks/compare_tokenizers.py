#!/usr/bin/env python3
"""Measures Lathe's tokenizers beside the package tokenizers. tests/golden/compare_tokenizers.py compares their ids.

  python3 tests/benchmarks/compare_tokenizers.py --tokenizer DIR... --program bazel-bin/tests/benchmarks/tokenizers
                                                 --file train.tsv [--threads N] [--rounds N]
  python3 tests/benchmarks/compare_tokenizers.py --train TEXTS... --work DIR --program ... --file train.tsv

It measures in turn, on the same texts with as many threads. Each round prints the texts a second of Lathe, of
encode_batch, and of encode_batch_fast, which keeps no offsets, like Lathe. It also prints the ratios. Each rate is the best
of several passes. DIR must hold a tokenizer.json.

--train makes tokenizers of RoBERTa's and ModernBERT's kind in --work and measures them. Their vocabularies have 50,000
tokens, as the published ones, and are trained on the lines of the files TEXTS.

Needs the package tokenizers, for --train also transformers and sentencepiece. The file is a .tsv with a column sentence.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time


def train(root, files):
    """Makes RoBERTa's and ModernBERT's kind of tokenizer in `root`, unless they are there, and returns their folders."""
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "golden"))
    from tokenizer_folders import CASES, Folders
    lines = [line for name in files for line in pathlib.Path(name).read_text(encoding="utf-8", errors="replace").splitlines() if line]
    folders = Folders(root, lines, size=50_000)
    for name in ("roberta", "modernbert"):
        if not (root / name / "tokenizer.json").exists():
            (root / name).mkdir(parents=True, exist_ok=True)
            CASES[name].make(folders, root / name)
    return [root / "roberta", root / "modernbert"]


def compare_speed(a, folder, texts):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    tokenizer.enable_truncation(128)
    tokenizer.no_padding()

    def rate(encode):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            encode(texts)
            times.append(time.perf_counter() - start)
        return len(texts) / min(times)

    print(folder)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
        print(*texts, sep="\n", file=file, flush=True)
        for _ in range(a.rounds):
            said = subprocess.run([a.program, folder, file.name, str(a.threads)], check=True, text=True,
                                  stdout=subprocess.PIPE).stdout
            lathe = max(float(line.split()[0]) for line in said.splitlines())
            batch, fast = rate(tokenizer.encode_batch), rate(tokenizer.encode_batch_fast)
            print(f"Lathe {lathe:,.0f}, encode_batch {batch:,.0f}: {lathe / batch:.1f} times; "
                  f"encode_batch_fast {fast:,.0f}: {lathe / fast:.1f} times", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokenizer", nargs="+", default=[])
    p.add_argument("--train", nargs="+", default=[], help="text files to train tokenizers on")
    p.add_argument("--work", type=pathlib.Path, help="folder for these tokenizers")
    p.add_argument("--program", required=True)
    p.add_argument("--file", required=True)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    if bool(a.train) != bool(a.work) or not (a.train or a.tokenizer):
        p.error("name folders with --tokenizer, or texts and a folder with --train and --work")
    os.environ["RAYON_NUM_THREADS"] = str(a.threads)
    with open(a.file, encoding="utf-8") as file:
        header, *lines = file.read().splitlines()
    column = header.split("\t").index("sentence")
    texts = [line.split("\t")[column] for line in lines]
    trained = train(a.work, a.train) if a.train else []
    for folder in [*a.tokenizer, *trained]:
        compare_speed(a, folder, texts)


if __name__ == "__main__":
    main()
