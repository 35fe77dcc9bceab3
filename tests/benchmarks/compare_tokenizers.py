#!/usr/bin/env python3
"""Compares Lathe's tokenizers with the `tokenizers` package, in turn, on the same texts with as many threads.

  python3 tests/benchmarks/compare_tokenizers.py --program bazel-bin/tests/benchmarks/tokenizers --tokenizer DIR
                                                 --file train.tsv [--threads N] [--rounds N]

Needs tokenizers. DIR holds a tokenizer.json; the file is a .tsv with a column sentence. Each round prints the texts a second
of Lathe, of encode_batch, and of encode_batch_fast, which keeps no offsets, like Lathe. It also prints the ratios. Each rate
is the best of several passes.
"""
import argparse
import os
import subprocess
import tempfile
import time


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", required=True)
    p.add_argument("--tokenizer", required=True)
    p.add_argument("--file", required=True)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(a.threads)
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(os.path.join(a.tokenizer, "tokenizer.json"))
    tokenizer.enable_truncation(128)
    tokenizer.no_padding()
    with open(a.file, encoding="utf-8") as file:
        header, *lines = file.read().splitlines()
    column = header.split("\t").index("sentence")
    texts = [line.split("\t")[column] for line in lines]

    def rate(encode):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            encode(texts)
            times.append(time.perf_counter() - start)
        return len(texts) / min(times)

    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
        print(*texts, sep="\n", file=file, flush=True)
        for _ in range(a.rounds):
            said = subprocess.run([a.program, a.tokenizer, file.name, str(a.threads)], check=True, text=True,
                                  stdout=subprocess.PIPE).stdout
            lathe = max(float(line.split()[0]) for line in said.splitlines())
            batch, fast = rate(tokenizer.encode_batch), rate(tokenizer.encode_batch_fast)
            print(f"Lathe {lathe:,.0f}, encode_batch {batch:,.0f}: {lathe / batch:.1f} times; "
                  f"encode_batch_fast {fast:,.0f}: {lathe / fast:.1f} times", flush=True)


if __name__ == "__main__":
    main()
