#!/usr/bin/env python3
"""Trains a tiny model on a large training file, in a process with the dataset cache, and tells time and memory.

  python3 tests/benchmarks/large_dataset.py --finetune bazel-bin/apps/finetune/finetune --folder DIR
                                            [--rows 20000000] [--tokens 30] [--steps 20000] [--memory]

Writes DIR/train.csv with so many rows of so many tokens, unless it is there, and runs three times: the first start, which
tokenizes; a second start; a second start with batches grouped by length. With --memory a fourth run keeps the data in memory.
The model is a BERT of 16 columns and one layer, so that the data take most of the time and the memory.

"peak" is VmHWM, the most memory that the process had at once, with files that it maps. "anonymous" is the most RssAnon that was
seen, ten times a second. "first step" is the time from the process's start to its first log.
"""
import argparse
import json
import os
import random
import subprocess
import threading
import time

WORDS = ["the", "film", "plot", "was", "is", "a", "very", "and", "it", "we", "saw", "story", "actor", "scene", "good", "bad"]


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--finetune", required=True)
    p.add_argument("--folder", required=True)
    p.add_argument("--rows", type=int, default=20_000_000)
    p.add_argument("--tokens", type=int, default=30, help="of each row, with [CLS] and [SEP]")
    p.add_argument("--steps", type=int, default=20_000)
    p.add_argument("--memory", action="store_true")
    return p.parse_args()


def write_files(a):
    model = os.path.join(a.folder, "model")
    os.makedirs(model, exist_ok=True)
    with open(os.path.join(model, "vocab.txt"), "w") as f:
        f.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + WORDS) + "\n")
    with open(os.path.join(model, "config.json"), "w") as f:
        json.dump({"architectures": ["BertForSequenceClassification"], "model_type": "bert", "vocab_size": 5 + len(WORDS),
                   "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
                   "max_position_embeddings": 128, "type_vocab_size": 2}, f)
    path = os.path.join(a.folder, "train.csv")
    if os.path.exists(path):
        return path
    # Rows differ in what they say but not in how long they are; one text in 10,000 is enough variety for a pool.
    rng = random.Random(1)
    texts = [" ".join(rng.choices(WORDS, k=a.tokens - 2)) for _ in range(10_000)]
    with open(path + ".part", "w") as f:
        f.write("sentence,label\n")
        for begin in range(0, a.rows, len(texts)):
            rows = min(len(texts), a.rows - begin)
            f.write("".join(f"{texts[i]},{(begin + i) * 7919 % 2}\n" for i in range(rows)))
    os.rename(path + ".part", path)
    return path


class MemoryWatch(threading.Thread):
    """Notes the memory of a process until it ends."""

    def __init__(self, pid):
        super().__init__()
        self.pid, self.peak, self.anonymous = pid, 0, 0

    def run(self):
        while True:
            try:
                with open(f"/proc/{self.pid}/status") as f:
                    values = dict(line.split(":", 1) for line in f)
            except OSError:
                return
            if "VmHWM" not in values:
                return  # it has ended and nobody has asked for its exit code yet
            self.peak = max(self.peak, int(values["VmHWM"].split()[0]) * 1024)
            self.anonymous = max(self.anonymous, int(values["RssAnon"].split()[0]) * 1024)
            time.sleep(0.1)


def run(a, name, train, more):
    out = os.path.join(a.folder, "out")
    command = [a.finetune, "--config_name", os.path.join(a.folder, "model"), "--train_file", train, "--output_dir", out,
               "--overwrite_output_dir", "--do_train", "--max_steps", str(a.steps), "--logging_steps", str(a.steps),
               "--logging_first_step", "--per_device_train_batch_size", "32", "--disable_tqdm"] + more
    # With this variable finetune does not start itself once more to set GOMP_SPINCOUNT.
    start = time.time()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_WAIT_POLICY": "passive"})
    watch = MemoryWatch(process.pid)
    watch.start()
    first, text = 0, ""
    for line in process.stdout:
        text += line
        if not first and "loss" in line:
            first = time.time() - start
    watch.join()
    if process.wait() != 0:
        raise SystemExit(f"{name}: finetune failed\n{text}")
    with open(os.path.join(out, "train_results.json")) as f:
        results = json.load(f)
    print(f"{name:<24} first step {first:7.1f} s   {results['train_samples_per_second']:9.0f} rows/s   "
          f"peak {watch.peak / 2**20:7.0f} MiB   anonymous {watch.anonymous / 2**20:7.0f} MiB", flush=True)


def main():
    a = arguments()
    train = write_files(a)
    cache = os.path.join(a.folder, "cache")
    print(f"{a.rows:,} rows of {a.tokens} tokens: {os.path.getsize(train) / 2**30:.2f} GiB of text", flush=True)
    run(a, "first start", train, ["--dataset_cache", cache, "--overwrite_cache"])
    run(a, "second start", train, ["--dataset_cache", cache])
    run(a, "grouped by length", train, ["--dataset_cache", cache, "--group_by_length"])
    print(f"cache: {sum(os.path.getsize(os.path.join(cache, f)) for f in os.listdir(cache)) / 2**30:.2f} GiB", flush=True)
    if a.memory:
        run(a, "in memory", train, ["--dataset_cache", "none"])


if __name__ == "__main__":
    main()
