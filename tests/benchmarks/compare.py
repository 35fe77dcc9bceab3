#!/usr/bin/env python3
"""Compares Lathe with its peer, PyTorch with Transformers and Accelerate, on the same work in turn.

  python3 tests/benchmarks/compare.py --finetune bazel-bin/apps/finetune/finetune --model DIR... --train FILE [--eval FILE]
                                      [--fresh] [--precision no|bf16] [--steps N] [--peer_steps N] [--best_steps N]
                                      [--compile] [--lathe bazel-bin/apps/lathe/lathe] [--batch N] [--length N]

Needs torch, transformers and accelerate. FILE is a .tsv with the columns sentence and label. With --fresh the weights are
random, for the model's config.json. With several models each is measured in turn, and a table of all comes last.

The runs come in this order: Lathe, the peer's default, Lathe. Then, with batches grouped by length on both sides: Lathe, the
peer with the fused AdamW, Lathe. With --compile the grouped runs are repeated with the peer's model compiled (torch.compile,
dynamic shapes). With --lathe and --eval each of Lathe's runs ends with `lathe predict` on the training texts, which is
compared with the peer's evaluation. Ratios are of runs next to each other.

Both sides take the same batches of 32 texts of at most 128 tokens (--batch N: of N texts), in the same order. With --length N
training texts are joined until they have N tokens, and are cut there. Each then has the label of its first text. Evaluation
cuts its texts at N tokens. Grouping sorts pools of 50 batches from long to short, so only whole pools are like a whole epoch.
Rates count real tokens, without each side's first steps. "first" is the time from a process's start to the end of its first
step, in seconds. "memory" is the process's peak.
"""
import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time

WARM_UP = 4  # steps that no rate counts
POOL = 50  # batches; as Trainer has it


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--finetune", help="Lathe's program")
    p.add_argument("--lathe", help="Lathe's other program, to predict with")
    p.add_argument("--model", required=True, nargs="+")
    p.add_argument("--train", required=True)
    p.add_argument("--eval")
    p.add_argument("--fresh", action="store_true")
    p.add_argument("--precision", choices=["no", "bf16"], default="no")
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--peer_steps", type=int, default=40)
    p.add_argument("--best_steps", type=int, default=50 + WARM_UP, help="of both sides where batches are grouped")
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--length", type=int)
    p.add_argument("--compile", action="store_true", help="beside the compiled peer, too")
    p.add_argument("--side", choices=["files", "default", "best", "compiled"], help=argparse.SUPPRESS)  # a part in a process of its own
    p.add_argument("--folder", help=argparse.SUPPRESS)
    return p.parse_args()


def most_tokens(a):
    return a.length or 128


def joined(lines, column, tokenizer, length):
    """Joins the texts of successive lines until each has `length` tokens."""
    result, words, tokens, first = [], [], 2, None  # two special tokens
    for line in lines:
        fields = line.split("\t")
        first = first or fields
        words.append(fields[column])
        tokens += len(tokenizer(fields[column], add_special_tokens=False)["input_ids"])
        if tokens >= length:
            result.append("\t".join([*first[:column], " ".join(words), *first[column + 1:]]))
            words, tokens, first = [], 2, None
    return result


def write_training_files(a, folder):
    """Writes the texts in random order, and grouped by length. Prints the number of real tokens of each one's batches."""
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(a.model)
    with open(a.train, encoding="utf-8") as file:
        header, *lines = file.read().splitlines()
    random.Random(1).shuffle(lines)
    column = header.split("\t").index("sentence")
    if a.length:
        lines = joined(lines, column, tokenizer, a.length)
    lengths = dict(zip(lines, map(len, tokenizer([line.split("\t")[column] for line in lines], truncation=True,
                                                 max_length=most_tokens(a))["input_ids"])))
    pool = POOL * a.batch
    grouped = [line for at in range(0, len(lines), pool)
               for line in sorted(lines[at:at + pool], key=lambda line: -lengths[line])]
    tokens = {}
    for name, order in (("random", lines), ("grouped", grouped)):
        with open(f"{folder}/{name}.tsv", "w", encoding="utf-8") as file:
            print(header, *order, sep="\n", file=file)
        tokens[name] = [sum(lengths[line] for line in order[at:at + a.batch]) for at in range(0, len(order), a.batch)]
    print(json.dumps(tokens))


def predictions(a, model, folder):
    """Returns texts a second of `lathe predict` with finetune's model, from the process's start to its end."""
    with open(f"{folder}/random.tsv", encoding="utf-8") as file:
        header, *lines = file.read().splitlines()
    column = header.split("\t").index("sentence")
    texts = "".join(line.split("\t")[column] + "\n" for line in lines)
    start = time.perf_counter()
    subprocess.run([a.lathe, "predict", model, *(["--bf16"] if a.precision == "bf16" else [])], input=texts, text=True,
                   check=True, stdout=subprocess.DEVNULL)
    return len(lines) / (time.perf_counter() - start)


def lathe(a, folder, order, steps, batch_tokens):
    """Runs finetune once. Its log tells when each step was done."""
    with tempfile.TemporaryDirectory() as out:
        fresh = ["--config_name", a.model, "--tokenizer_name", a.model]
        model = fresh if a.fresh else ["--model_name_or_path", a.model]
        command = [a.finetune, *model, "--train_file", f"{folder}/{order}.tsv", "--do_train", "--output_dir", out,
                   "--max_steps", str(steps), "--per_device_train_batch_size", str(a.batch), "--shuffle_train", "false",
                   "--learning_rate", "3e-5", "--max_seq_length", str(most_tokens(a)), "--mixed_precision", a.precision,
                   "--logging_steps", "1", "--disable_tqdm"]
        if a.eval:
            command += ["--do_eval", "--validation_file", a.eval, "--per_device_eval_batch_size", "64"]
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        done = [time.perf_counter() - start for line in process.stdout if line.startswith("step ")]
        _, status, usage = os.wait4(process.pid, 0)
        if status != 0 or len(done) != steps:
            sys.exit(f"{a.finetune} failed")
        results = json.load(open(out + "/all_results.json"))
        predicted = predictions(a, out, folder) if a.lathe and a.eval else None
    tokens = sum(batch_tokens[i % len(batch_tokens)] for i in range(WARM_UP, steps))
    return dict(tokens=tokens / (done[-1] - done[WARM_UP - 1]), first=done[0], memory=usage.ru_maxrss * 1024e-9,
                evaluation=results.get("eval_samples_per_second"), accuracy=results.get("eval_accuracy"),
                predict=predicted)


def peer(a, folder, side):
    said = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--model", a.model, "--side", side, "--folder", folder],
                          stdout=subprocess.PIPE, text=True)
    if said.returncode != 0:
        sys.exit(f"the part \"{side}\" failed")
    return json.loads(said.stdout.strip().splitlines()[-1])


def run_peer(a, start):
    import resource
    import torch
    from accelerate import Accelerator
    from transformers import (AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding,
                              get_scheduler)

    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(a.model)
    auto = AutoModelForSequenceClassification
    if a.fresh:
        model = auto.from_config(AutoConfig.from_pretrained(a.model, num_labels=2))
    else:
        model = auto.from_pretrained(a.model, num_labels=2, dtype=torch.float32)

    def read(path):
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        encoded = tokenizer([row["sentence"] for row in rows], truncation=True, max_length=most_tokens(a))
        return [{**{key: encoded[key][i] for key in encoded}, "labels": int(row["label"])}
                for i, row in enumerate(rows)]

    best = a.side != "default"
    steps = a.best_steps if best else a.peer_steps
    collate = DataCollatorWithPadding(tokenizer)
    loader = torch.utils.data.DataLoader(read(f"{a.folder}/{'grouped' if best else 'random'}.tsv"), batch_size=a.batch,
                                         collate_fn=collate)
    accelerator = Accelerator(mixed_precision=a.precision, cpu=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, weight_decay=0.0, fused=best or None)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=steps)
    if a.side == "compiled":
        model = torch.compile(model, dynamic=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    model.train()
    done, tokens, result = 0, 0, {}
    while done < steps:
        for batch in loader:
            if done == WARM_UP:
                begin, tokens = time.perf_counter(), 0
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            tokens += int(batch["attention_mask"].sum())
            done += 1
            result.setdefault("first", time.perf_counter() - start)
            if done == steps:
                break
    result["tokens"] = tokens / (time.perf_counter() - begin)
    result["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024e-9
    if a.eval:
        texts = read(a.eval)
        loader = accelerator.prepare(torch.utils.data.DataLoader(texts, batch_size=64, collate_fn=collate))
        model.eval()
        begin = time.perf_counter()
        with torch.no_grad():
            right = sum(int((model(**batch).logits.argmax(-1) == batch["labels"]).sum()) for batch in loader)
        result["evaluation"] = len(texts) / (time.perf_counter() - begin)
        result["accuracy"] = right / len(texts)
    print(json.dumps(result))


def number(value):
    return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def name_of(model):
    return os.path.basename(os.path.normpath(model))


def ratios(runs, key, beside):
    """Returns the lower and the higher ratio of Lathe's runs to the peer's between them, or None if one wasn't measured."""
    if runs[0].get(key) and runs[1].get(beside):
        return sorted(runs[k][key] / runs[1][beside] for k in (0, 2))
    return None


def measure(a):
    """Measures one model. Returns the three runs beside each of the peer's sides."""
    with tempfile.TemporaryDirectory() as folder:
        tokens = peer(a, folder, "files")  # this process stays small: its children's peaks include its memory
        sides = [("default", "random", a.steps), ("best", "grouped", a.best_steps)]
        if a.compile:
            sides.append(("compiled", "grouped", a.best_steps))
        measured = {}
        for side, order, steps in sides:
            runs = measured[side] = []
            for who in ("lathe", side, "lathe"):
                runs.append(peer(a, folder, side) if who == side else lathe(a, folder, order, steps, tokens[order]))
                said = (f"{key} {number(value)}" for key, value in runs[-1].items() if value is not None)
                print(f"{order:8}{who:9}", ", ".join(said), flush=True)
            for key, beside, unit in (("tokens", "tokens", "tokens/s"), ("evaluation", "evaluation", "evaluation"),
                                      ("predict", "evaluation", "predictions"), ("memory", "memory", "memory")):
                if found := ratios(runs, key, beside):
                    print(f"{name_of(a.model)} {a.precision}: {unit} {found[0]:.2f} to {found[1]:.2f} of the peer's {side}",
                          flush=True)
    return measured


def table(precision, results):
    """Returns a table in Markdown. `results` holds each model's name with what measure() returned."""
    sides = list(results[0][1])
    header = ["model, precision"]
    for side in sides:
        header += ["Lathe" if side == "default" else "Lathe, grouped", f"peer's {side}", "ratio"]
    more = [(f"{what}, Lathe over {' / '.join(sides)}", key) for what, key in (("evaluation", "evaluation"), ("memory", "memory"))
            if all(ratios(runs, key, key) for _, measured in results for runs in measured.values())]
    rows = [header + [title for title, _ in more]]
    for name, measured in results:
        row = [f"{name} {'f32' if precision == 'no' else precision}"]
        for runs in measured.values():
            low, high = (f"{ratio:.2f}" for ratio in ratios(runs, "tokens", "tokens"))
            row += [f"{number(runs[0]['tokens'])}, {number(runs[2]['tokens'])}", number(runs[1]["tokens"]),
                    low if low == high else f"{low} to {high}"]
        row += [" / ".join(f"{ratios(runs, key, key)[0]:.2f}" for runs in measured.values()) for _, key in more]
        rows.append(row)
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main():
    start = time.perf_counter()
    a = arguments()
    models = a.model
    a.model = models[0]
    if a.side == "files":
        return write_training_files(a, a.folder)
    if a.side:
        return run_peer(a, start)
    if not a.finetune:
        sys.exit("which program? --finetune bazel-bin/apps/finetune/finetune")
    if len(models) == 1:
        measure(a)
        return None
    results, failed = [], []
    for model in models:
        a.model = model
        try:
            results.append((name_of(model), measure(a)))
        except SystemExit as error:  # the others' measurements shall not be lost
            print(f"{name_of(model)}: {error}", flush=True)
            failed.append(model)
    if results:
        print("\n" + table(a.precision, results))
    return f"not measured: {', '.join(failed)}" if failed else None


if __name__ == "__main__":
    sys.exit(main())
