#!/usr/bin/env python3
"""Compares `lathe tokenize` with Transformers' tokenizers: ids, token types, pairs and truncation.

  python3 tests/golden/compare_tokenizers.py --lathe bazel-bin/apps/lathe/lathe [--count N] [--seed N] [--case NAME...]
                                             [--tokenizer DIR...] [--sst2 DIR] [--stsb DIR] [--work DIR]

It trains a tokenizer of each kind that Lathe reads (tokenizer_folders.py names them), and adds the folders --tokenizer.
The texts are package descriptions in all languages that apt has, the sentences of SST-2 and the pairs of STS-B if their
folders are given, and random texts of all scripts. A part of them is cut to a few lengths. The script prints how many
texts differ for each tokenizer, and the first ones. It ends with 1 if one differs.

Without a tokenizer.json Lathe uses the SentencePiece library. Such a folder is compared with the library's Python package,
on whole single texts. If two segmentations have the same score, the library's versions differ in which they take; such a
text counts as a tie.

Needs transformers (5 or later), tokenizers, sentencepiece and protobuf, and Debian's apt-cache.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import sentencepiece
import transformers

from tokenizer_folders import CASES, Case, Folders, training_lines
from tokenizer_texts import all_texts

# Lengths that single texts (False) and pairs (True) are cut to; 0 is no cut.
LENGTHS = {False: [0, 0, 0, 0, 0, 0, 0, 5, 16, 64], True: [0, 0, 0, 0, 0, 7, 8, 13, 16, 48]}


def groups_of(texts):
    """Sorts texts into lists of (text, pair) by (has a pair, length to cut to)."""
    groups = {}
    for place, (text, pair) in enumerate(texts):
        lengths = LENGTHS[pair is not None]
        # The package tokenizers keeps what it cuts, in space that grows with the square of a text's length: no long ones.
        length = lengths[place // 7 % len(lengths)] if len(text) + len(pair or "") < 200 else 0
        groups.setdefault((pair is not None, length), []).append((text, pair))
    return groups


def lines_of(texts):
    """Returns the texts as `lathe tokenize` takes them, without what it could not tell apart."""
    # The first tab of a line stands between its two texts.
    lines = [text if pair is None else text.replace("\t", " ") + "\t" + pair for text, pair in texts]
    return [line.replace("\0", "") if is_argument(line) else line for line in lines]


def is_argument(line):
    """Whether the line can't be one of standard input."""
    return "\n" in line or line.endswith("\r")


def as_arguments(lines):
    """Cuts the lines into lists that fit a command line."""
    batch, size = [], 0
    for line in lines:
        if batch and size + len(line.encode()) > 1_000_000 or len(batch) == 1000:
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line.encode())
    if batch:
        yield batch


def run_lathe(program, folder, options, lines):
    """Yields Lathe's answer to each line. Lines with line feeds are arguments, the others come from a file."""
    def answers(process):
        for line in process.stdout:
            yield json.loads(line)
        if process.wait() != 0:
            raise RuntimeError(f"{program} tokenize {folder} ended with {process.returncode}")

    def start(arguments, stdin):
        return subprocess.Popen([program, "tokenize", folder, *options, *arguments], stdin=stdin,
                                stdout=subprocess.PIPE)

    by_argument = [line for line in lines if is_argument(line)]
    from_arguments = (answer for batch in as_arguments(by_argument)
                      for answer in answers(start(["--", *batch], subprocess.DEVNULL)))
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines if not is_argument(line))
        file.seek(0)
        from_file = answers(start([], file))
        for line in lines:
            yield next(from_arguments if is_argument(line) else from_file)
        for _ in from_file:
            raise RuntimeError(f"{program} answered more lines than it was asked")


def reader_of(folder, reader):
    """Returns a function from lists of texts and pairs (or None) and a length to lists of ids and of types (or None)."""
    if not isinstance(reader, str):
        processor = sentencepiece.SentencePieceProcessor(model_file=str(next(folder.glob("*.model"))))
        to_ids = reader(processor)
        return lambda texts, pairs, length: ([to_ids(pieces) for pieces in processor.encode(texts)], None)
    if reader == "file":
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def encode(texts, pairs, length):
        cut = {"truncation": "longest_first", "max_length": length} if length else {}
        out = tokenizer(texts, pairs, return_attention_mask=False, **cut)
        ids, types = out["input_ids"], out.get("token_type_ids")
        for place in [i for i, pair in enumerate(pairs or []) if pair == ""]:
            # In a list Transformers takes an empty second text for a text, elsewhere for none. Lathe takes it for none.
            out = tokenizer(texts[place], return_attention_mask=False, **cut)
            ids[place] = out["input_ids"]
            if types is not None:
                types[place] = out["token_type_ids"]
        return ids, types
    return encode


def is_tie(folder, case, first, second):
    """Whether two lists of ids are segmentations of the SentencePiece library that have the same score."""
    if isinstance(case.reader, str):
        return False
    processor = sentencepiece.SentencePieceProcessor(model_file=str(next(folder.glob("*.model"))))
    scores = dict(zip(case.reader(processor)(range(len(processor)))[1:-1],
                      (processor.get_score(i) for i in range(len(processor)))))
    totals = [sum(scores[i] for i in ids[1:-1]) for ids in (first, second)]
    # The library adds the scores in float32, so what a long text's sum lacks grows with the number of pieces.
    return abs(totals[0] - totals[1]) < 1e-4 - 1e-7 * totals[0] * len(first) ** 0.5


def suits(case, text, pair, length):
    """Whether the case's reader can be asked: the SentencePiece library knows neither pairs nor lengths."""
    if not isinstance(case.reader, str) and (pair is not None or length):
        return False
    return not re.search(case.leaves_out, f"{text}\t{pair or ''}")


def compare(a, name, folder, case, groups):
    """Prints which texts differ, and returns how many."""
    encode = reader_of(folder, case.reader)
    types_count = case.reader == "auto"
    total = different = ties = 0
    for (is_pair, length), texts in groups.items():
        texts = [t for t in texts if suits(case, *t, length)]
        options = ["--max_length", str(length), *(["--pairs"] if is_pair else [])]
        lines = lines_of(texts)
        lathe = run_lathe(a.lathe, str(folder), options, lines) if texts else iter(())
        size = 200 if length else 2000  # of texts that are encoded together
        for begin in range(0, len(texts), size):
            chunk = lines[begin:begin + size]
            firsts = [line.split("\t", 1)[0] for line in chunk] if is_pair else chunk
            seconds = [line.split("\t", 1)[1] for line in chunk] if is_pair else None
            ids, types = encode(firsts, seconds, length)
            for place, line in enumerate(chunk):
                ours = next(lathe)
                total += 1
                same_types = not types_count or types is None or ours["token_type_ids"] == types[place]
                if ours["input_ids"] == ids[place] and same_types:
                    continue
                if is_tie(folder, case, ours["input_ids"], ids[place]):
                    ties += 1
                    continue
                different += 1
                if different <= a.show:
                    print(f"  length {length}: {line[:300]!a}\n    Lathe  {ours['input_ids'][:60]}\n"
                          f"    reader {ids[place][:60]}{'' if same_types else ' and other types'}")
        for _ in lathe:
            raise RuntimeError("the program answered more lines than it was asked")
    print(f"{name}: {different} of {total:,} texts differ" + (f", {ties} are ties" if ties else ""), flush=True)
    return different


def compare_or_report(a, name, *rest):
    """As compare(), but a program that fails counts as one difference."""
    try:
        return compare(a, name, *rest)
    except RuntimeError as error:
        print(f"{name}: {error}", flush=True)
        return 1


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lathe", required=True, help="the program")
    p.add_argument("--count", type=int, default=200_000, help="number of texts (default: 200,000)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--case", nargs="+", default=list(CASES), choices=[*CASES, "none"], help="tokenizers to train")
    p.add_argument("--tokenizer", nargs="+", type=pathlib.Path, default=[], help="folders to compare, too")
    p.add_argument("--lists", default="/var/lib/apt/lists", help="folder of apt's lists, with its translations")
    p.add_argument("--sst2", help="folder of train.tsv, dev.tsv and test.tsv with a column sentence")
    p.add_argument("--stsb", help="the same with sentence1 and sentence2")
    p.add_argument("--work", type=pathlib.Path, help="keep the trained tokenizers in this folder")
    p.add_argument("--show", type=int, default=5, help="number of different texts to print for each tokenizer")
    a = p.parse_args()
    transformers.logging.set_verbosity_error()
    texts = all_texts(a.count, a.seed, a.lists, a.sst2, a.stsb)
    groups = groups_of(texts)
    different = 0
    with tempfile.TemporaryDirectory() as scratch:
        root = a.work or pathlib.Path(scratch)
        folders = Folders(root, training_lines(texts, a.seed))
        for name in a.case:
            if name == "none":
                continue
            folder = root / name
            if not folder.exists():
                making = root / "making" / name  # a run that ends early leaves no half a folder
                making.mkdir(parents=True, exist_ok=True)
                CASES[name].make(folders, making)
                making.rename(folder)
            different += compare_or_report(a, name, folder, CASES[name], groups)
        for folder in a.tokenizer:
            different += compare_or_report(a, str(folder), folder, Case(None), groups)
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
