#!/usr/bin/env python3
"""Measures how long `lathe predict` takes from its start to the first prediction, by format of the weights.

  python3 tests/benchmarks/loading.py --lathe bazel-bin/apps/lathe/lathe --model DIR [--runs 7] [--folder DIR]

DIR has the config.json and the tokenizer of a model, such as BERT-base; its weights, if any, are not read. The script makes a
classifier with fresh random weights of those shapes, and saves it as model.safetensors, pytorch_model.bin and, if TensorFlow
has the family, tf_model.h5. It then runs the program with one text, format after format in turn, so that other work on the
machine affects them alike. A first run of each doesn't count: after it the file is in the page cache.

It needs torch, transformers, safetensors and h5py. --folder keeps the files for a further call. For each format it prints:
  file       the bytes of the weights' file
  seconds    from the process's start to the first line of its output: the median, the least and the most of the runs
  peak       the most memory that the process had until then (VmHWM), and the same divided by the bytes of the parameters
The child process that reads HDF5 isn't in the peak. It ends with an error if the formats' predictions differ.
"""
import argparse
import contextlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))
FILES = {"safetensors": "model.safetensors", "bin": "pytorch_model.bin", "h5": "tf_model.h5"}
NOT_IN_TENSORFLOW = ["modernbert", "eurobert", "nomic_bert", "megatron-bert", "xlm-roberta-xl", "squeezebert", "ernie"]
TEXT = "a fine day for a walk by the river\n"


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lathe", required=True)
    p.add_argument("--model", required=True, type=Path)
    p.add_argument("--runs", type=int, default=7)
    p.add_argument("--folder", type=Path)
    return p.parse_args()


def write_weights(source, folder):
    """Makes a folder for each format, unless it is there. Returns the bytes of the parameters."""
    import torch
    from make_weights import save_h5
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForSequenceClassification
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(source)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    savers = {"safetensors": lambda file: save_file(model.state_dict(), file, metadata={"format": "pt"}),
              "bin": lambda file: torch.save(model.state_dict(), file), "h5": lambda file: save_h5(model, file)}
    for name, save in savers.items():
        if name == "h5" and config.model_type in NOT_IN_TENSORFLOW or (folder / name).exists():
            continue
        part = folder / (name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for file in source.iterdir():
            if file.suffix in (".json", ".txt", ".model") and not file.name.endswith(".index.json"):
                shutil.copy(file, part)
        model.config.save_pretrained(part)
        save(part / FILES[name])
        part.rename(folder / name)
    return sum(p.numel() * p.element_size() for p in model.parameters())


def run(lathe, folder):
    """Returns the seconds to the first prediction, the most memory in bytes until then, and the prediction."""
    start = time.perf_counter()
    with subprocess.Popen([lathe, "predict", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdin.write(TEXT)
        process.stdin.flush()
        line = process.stdout.readline()
        seconds = time.perf_counter() - start
        if not line:
            sys.exit(f"{lathe} predict {folder} ended without a prediction")
        # The child's resource usage would also count this process's memory, which it had before it became `lathe`.
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
        process.stdin.close()
    return seconds, peak, line


def main():
    a = arguments()
    if a.runs < 1:
        sys.exit("--runs must be at least 1")
    with contextlib.ExitStack() as stack:
        folder = a.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        size = write_weights(a.model, folder)
        names = [name for name in FILES if (folder / name).exists()]
        first = {name: run(a.lathe, folder / name)[2] for name in names}
        if len(set(first.values())) > 1:
            sys.exit(f"the predictions differ: {first}")
        runs = {name: [] for name in names}
        for _ in range(a.runs):
            for name in names:
                runs[name].append(run(a.lathe, folder / name))
        print(f"{size / 1e6:.0f} MB of parameters, {a.runs} runs\n")
        print("| format | file, MB | start to first prediction, s | peak, MB | peak by parameters |\n|---|---|---|---|---|")
        for name in names:
            seconds, peaks = [r[0] for r in runs[name]], [r[1] for r in runs[name]]
            file = (folder / name / FILES[name]).stat().st_size
            print(f"| {FILES[name]} | {file / 1e6:.0f} | {statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f}) | "
                  f"{max(peaks) / 1e6:.0f} | {max(peaks) / size:.2f} |")


if __name__ == "__main__":
    main()
