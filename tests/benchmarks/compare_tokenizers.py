#!/usr/bin/env python3
"""Compares Lathe's tokenizers with Transformers': their ids, and their speed.

  python3 tests/benchmarks/compare_tokenizers.py --tokenizer DIR... --lathe bazel-bin/apps/lathe/lathe [--file train.tsv]
                                                 [--random N] [--seed N] [--reader auto|file]
  python3 tests/benchmarks/compare_tokenizers.py --tokenizer DIR... --program bazel-bin/tests/benchmarks/tokenizers
                                                 --file train.tsv [--threads N] [--rounds N]

With --lathe it compares ids and token types, on the file's texts and on N random ones: letters of all scripts, emoji,
controls, private use and unassigned characters, white space, special tokens. It prints how many texts differ, and the
first ones. The reader is AutoTokenizer, or with "file" tokenizer.json as it stands. It ends with 1 if a text differs.

With --program it measures in turn, on the same texts with as many threads. Each round prints the texts a second of
Lathe, of encode_batch, and of encode_batch_fast, which keeps no offsets, like Lathe. It also prints the ratios. Each
rate is the best of several passes. DIR must hold a tokenizer.json.

Needs tokenizers, and transformers for --reader auto. The file is a .tsv with a column sentence.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

# First and last code points of what random texts are made of.
RANGES = [(0x41, 0x5A), (0x61, 0x7A), (0x61, 0x7A), (0x61, 0x7A), (0x20, 0x20), (0x20, 0x20), (0x20, 0x7E), (0x30, 0x39),
          (0x01, 0x1F), (0x7F, 0xA0), (0xA1, 0x17F), (0x180, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F),
          (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F), (0x980, 0xDFF), (0xE00, 0xEFF), (0x1000, 0x109F),
          (0x1100, 0x11FF), (0x13A0, 0x13FF), (0x1700, 0x18AF), (0x1C80, 0x1C8F), (0x1CD0, 0x1CFA), (0x1E00, 0x1FFF),
          (0x2000, 0x206F), (0x2070, 0x218B), (0x2190, 0x27BF), (0x2460, 0x24FF), (0x2E00, 0x2E7F), (0x3000, 0x30FF),
          (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA640, 0xA7FF), (0xAC00, 0xD7A3), (0xE000, 0xF8FF), (0xF900, 0xFAFF),
          (0xFB00, 0xFEFF), (0xFF00, 0xFFFF), (0x10000, 0x103FF), (0x10400, 0x10FFF), (0x11000, 0x11FFF),
          (0x16A00, 0x16FFF), (0x1B000, 0x1B2FF), (0x1D000, 0x1D7FF), (0x1E800, 0x1EFFF), (0x1F000, 0x1FAFF),
          (0x20000, 0x2FA1F), (0x30000, 0x323AF), (0xE0000, 0xE01EF), (0xF0000, 0x10FFFF)]
PIECES = ["[MASK]", "[SEP]", "[CLS]", "[UNK]", "<mask>", "<s>", "</s>", "<unk>", "<pad>", "  ", "   ", "\n\n", "\t", "\r\n",
          "'s", "'re", "don't", "\u2581", "e\u0301", "\U0001F469\u200D\U0001F469\u200D\U0001F467", "\U0001F1E9\U0001F1EA",
          "``", "''", "9,", "1,000.50", "\ufb01", "\uff21", "##s", "the", " and ", "film", "\u0130", "\u03a3"]


def random_text(rng):
    # Half of the texts stay within few scripts, as real ones do.
    ranges = RANGES if rng.random() < 0.5 else rng.sample(RANGES, 3) + RANGES[1:5]
    parts = []
    for _ in range(rng.randint(1, 24)):
        if rng.random() < 0.15:
            parts.append(rng.choice(PIECES))
        first, last = rng.choice(ranges)
        for _ in range(rng.choice((1, 1, 2, 4))):
            c = rng.randint(first, last)
            parts.append("" if 0xD800 <= c < 0xE000 else chr(c))
    return "".join(parts)


def lathe_encodings(program, folder, texts):
    """Yields Lathe's line for each text. Texts are arguments, because they may hold line feeds."""
    for begin in range(0, len(texts), 1000):
        said = subprocess.run([program, "tokenize", folder, "--", *texts[begin:begin + 1000]], check=True, text=True,
                              encoding="utf-8", stdout=subprocess.PIPE).stdout
        yield from map(json.loads, said.removesuffix("\n").split("\n"))


def reader_of(folder, reader):
    """Returns a function from a text to its ids and its types; the types are None if the tokenizer makes none."""
    if reader == "file":
        from tokenizers import Tokenizer
        tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return lambda text: (tokenizer.encode(text).ids, None)
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def encode(text):
        encoding = tokenizer(text)
        return encoding["input_ids"], encoding.get("token_type_ids")
    return encode


def compare_ids(a, folder, texts):
    """Prints which texts differ, and returns how many."""
    encode = reader_of(folder, a.reader)
    different = 0
    for text, ours in zip(texts, lathe_encodings(a.lathe, folder, texts), strict=True):
        ids, types = encode(text)
        if ours["input_ids"] == ids and types in (None, ours["token_type_ids"]):
            continue
        different += 1
        if different <= a.show:
            print(f"  {text!a}\n    Lathe  {ours['input_ids']}\n    reader {ids}")
    print(f"{folder}: {different} of {len(texts)} texts differ", flush=True)
    return different


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
    p.add_argument("--program")
    p.add_argument("--lathe")
    p.add_argument("--file")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--random", type=int, default=0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--show", type=int, default=5)
    p.add_argument("--reader", choices=["auto", "file"], default="auto")
    a = p.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(a.threads)
    texts = []
    if a.file:
        with open(a.file, encoding="utf-8") as file:
            header, *lines = file.read().splitlines()
        column = header.split("\t").index("sentence")
        texts = [line.split("\t")[column] for line in lines]
    different = 0
    for folder in a.tokenizer:
        if a.lathe:
            rng = random.Random(a.seed)
            different += compare_ids(a, folder, texts + [random_text(rng) for _ in range(a.random)])
        if a.program:
            compare_speed(a, folder, texts)
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
