#!/usr/bin/env python3
"""Compares `lathe predict` with ONNX Runtime on the same model and texts, in turn, in texts a second.

  python3 tests/benchmarks/compare_onnx.py --lathe bazel-bin/apps/lathe/lathe --model DIR --file FILE [--rounds N] [--threads N] [--int8]

Needs torch, transformers, onnx and onnxruntime. DIR holds a BERT-style classifier as SavePretrained writes it. FILE is a .tsv
with the column sentence.

ONNX Runtime gets texts sorted by length, in batches of 64. Its time goes from the first text to be tokenized to the last
probability; starting Python and loading the model are not counted. Lathe's time goes from the process's start to its end.
With --int8 the weights are quantized, too (ONNX Runtime's dynamic quantization), as a third column.

ONNX Runtime can't be held to a level of instructions. The environment variables that tests/with_isa.sh sets hold only Lathe.
"""
import argparse
import csv
import json
import os
import subprocess
import tempfile
import time

import numpy
import onnxruntime
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def export(folder, path):
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    example = (torch.ones(2, 8, dtype=torch.int64), torch.ones(2, 8, dtype=torch.int64))
    axes = {0: "batch", 1: "length"}
    torch.onnx.export(
        model, example, path, input_names=["input_ids", "attention_mask"], output_names=["logits"], dynamo=False,
        dynamic_axes={"input_ids": axes, "attention_mask": axes, "logits": {0: "batch"}}, opset_version=17)


def run_onnx(session, tokenizer, texts):
    start = time.monotonic()
    ids = tokenizer(texts, truncation=True, max_length=128)["input_ids"]
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    labels = numpy.zeros(len(ids), dtype=numpy.int64)
    for first in range(0, len(order), 64):
        rows = order[first:first + 64]
        longest = max(len(ids[row]) for row in rows)
        input_ids = numpy.zeros((len(rows), longest), dtype=numpy.int64)
        mask = numpy.zeros_like(input_ids)
        for place, row in enumerate(rows):
            input_ids[place, :len(ids[row])] = ids[row]
            mask[place, :len(ids[row])] = 1
        labels[rows] = session.run(["logits"], {"input_ids": input_ids, "attention_mask": mask})[0].argmax(-1)
    return len(texts) / (time.monotonic() - start), labels


def run_lathe(lathe, folder, path):
    start = time.monotonic()
    with open(path) as file:
        done = subprocess.run([lathe, "predict", folder], stdin=file, check=True, capture_output=True, text=True)
    seconds = time.monotonic() - start
    return seconds, [json.loads(line)["label"] for line in done.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lathe", default="bazel-bin/apps/lathe/lathe")
    parser.add_argument("--model", required=True)
    parser.add_argument("--file", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--int8", action="store_true")
    options = parser.parse_args()
    with open(options.file, newline="") as file:
        texts = [row["sentence"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    names = AutoModelForSequenceClassification.from_pretrained(options.model).config.id2label
    with tempfile.TemporaryDirectory() as work:
        models = {"f32": work + "/f32.onnx"}
        export(options.model, models["f32"])
        if options.int8:
            models["int8"] = work + "/int8.onnx"
            quantize_dynamic(models["f32"], models["int8"], weight_type=QuantType.QInt8)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = options.threads
        sessions = {name: onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"]) for name, path in models.items()}
        lines = work + "/texts.txt"
        with open(lines, "w") as file:
            file.writelines(text + "\n" for text in texts)
        for round_number in range(options.rounds):
            seconds, lathe_labels = run_lathe(options.lathe, options.model, lines)
            line = f"round {round_number + 1}: Lathe {len(texts) / seconds:.0f} texts/s"
            for name, session in sessions.items():
                rate, labels = run_onnx(session, tokenizer, texts)
                equal = numpy.mean([names[int(label)] == other for label, other in zip(labels, lathe_labels, strict=True)])
                line += f"; ONNX Runtime {name} {rate:.0f} (Lathe {len(texts) / seconds / rate:.2f} times), {100 * equal:.2f} % equal labels"
            print(line, flush=True)


if __name__ == "__main__":
    main()
