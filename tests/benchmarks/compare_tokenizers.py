#!/usr/bin/env python3
"""Measures Lathe's tokenizers beside the package tokenizers. tests/golden/compare_tokenizers.py compares their ids.

  python3 tests/benchmarks/compare_tokenizers.py --tokenizer DIR... --program bazel-bin/tests/benchmarks/tokenizers
                                                 --file train.tsv [--threads N] [--rounds N]

It measures in turn, on the same texts with as many threads. Each round prints the texts a second of Lathe, of
encode_batch, and of encode_batch_fast, which keeps no offsets, like Lathe. It also prints the ratios. Each rate is the best
of several passes. DIR must hold a tokenizer.json.

Needs the package tokenizers. The file is a .tsv with a column sentence.
"""
import argparse
import os
import subprocess
import tempfile
import time


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
    p.add_argument("--tokenizer", required=True, nargs="+")
    p.add_argument("--program", required=True)
    p.add_argument("--file", required=True)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(a.threads)
    with open(a.file, encoding="utf-8") as file:
        header, *lines = file.read().splitlines()
    column = header.split("\t").index("sentence")
    texts = [line.split("\t")[column] for line in lines]
    for folder in a.tokenizer:
        compare_speed(a, folder, texts)


if __name__ == "__main__":
    main()
