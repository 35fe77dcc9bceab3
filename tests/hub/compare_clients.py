#!/usr/bin/env python3
"""Compares Lathe's client for the Hub with huggingface_hub's, on the same test server.

    bazel build //tests/hub:serve //apps/lathe
    tests/hub/compare_clients.py --bin bazel-bin

It needs the packages huggingface_hub and transformers. Both clients fetch the same model, each into an empty cache and
each after the other; the files and links must be the same. What one has fetched, the other must read without a network,
and without asking for it again.
"""
import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile

FETCH = """
import sys
from huggingface_hub import hf_hub_download
for name in sys.argv[2:]:
    print(hf_hub_download(sys.argv[1], name))
"""
# What AutoTokenizer and AutoConfig look for.
AUTO = """
import sys
from transformers import AutoConfig, AutoTokenizer
AutoConfig.from_pretrained(sys.argv[1])
print(AutoTokenizer.from_pretrained(sys.argv[1])("hello world")["input_ids"])
"""
FILES = ["config.json", "vocab.txt", "model.safetensors"]
NAME = "owner/name"


def tree(folder, skip=("trees", ".no_exist")):
    """Lists files with their contents and links with their targets, but for what only one client keeps."""
    lines = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.split("/")[0] in skip or (path.is_dir() and not path.is_symlink()):
            continue
        lines[name] = os.readlink(path) if path.is_symlink() else path.read_bytes()
    return lines


class Comparison:
    def __init__(self, bin_folder, root):
        self.bin, self.root, self.failed = bin_folder, root, False
        model = root / "models" / NAME
        model.mkdir(parents=True)
        config = ('{"model_type": "bert", "vocab_size": 7, "hidden_size": 8, "num_hidden_layers": 1, '
                  '"num_attention_heads": 1, "intermediate_size": 8}')
        (model / "config.json").write_text(config)
        (model / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\nworld\n")
        (model / "model.safetensors").write_bytes(random.Random(1).randbytes(300_000))
        self.server = subprocess.Popen([bin_folder / "tests/hub/serve", root / "models"], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True)
        self.url = self.server.stdout.readline().strip()

    def requests(self):
        """Returns the requests since the last call."""
        self.server.stdin.write("\n")
        self.server.stdin.flush()
        lines = []
        while (line := self.server.stdout.readline().strip()) != "end":
            lines.append(line)
        return lines

    def run(self, command, cache, offline=False):
        environment = dict(os.environ, HF_ENDPOINT=self.url, HF_HUB_CACHE=str(cache), HF_HOME=str(self.root / "home"),
                           HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_XET="1")
        environment.pop("HF_HUB_OFFLINE", None)
        if offline:
            environment["HF_HUB_OFFLINE"] = "1"
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        self.check(result.returncode == 0, f"{command[:4]} failed: {result.stderr[-600:]}")
        return result.stdout.strip()

    def python(self, cache, offline=False):
        return self.run([sys.executable, "-c", FETCH, NAME, *FILES], cache, offline)

    def lathe(self, cache, offline=False):
        return self.run([self.bin / "apps/lathe/lathe", "download", NAME], cache, offline)

    def check(self, ok, what):
        if not ok:
            print("FAILED:", what)
            self.failed = True

    def compare(self):
        folder = "models--owner--name"
        first, second = self.root / "lathe", self.root / "python"
        self.lathe(first)
        self.python(second)
        ours, theirs = tree(first / folder), tree(second / folder)
        self.check(ours == theirs, f"the caches differ: {sorted(ours)} and {sorted(theirs)}")
        for cache, read, who in [(first, self.python, "huggingface_hub"), (second, self.lathe, "lathe")]:
            before = tree(cache / folder)
            self.requests()
            read(cache, offline=True)
            self.check(self.requests() == [], f"{who} makes requests offline")
            read(cache)
            fetched = [line for line in self.requests() if line.startswith("GET") and "/resolve/" in line]
            self.check(fetched == [], f"{who} fetches again: {fetched}")
            self.check(tree(cache / folder) == before, f"{who} changes the other's cache")
        # Tokenizers and configurations, by Transformers itself.
        ids = self.run([sys.executable, "-c", AUTO, NAME], first, offline=True)
        self.check(ids == "[2, 5, 6, 3]", f"Transformers reads {ids} from Lathe's cache")
        tokens = self.run([self.bin / "apps/lathe/lathe", "tokenize", NAME, "hello world"], second, offline=True)
        self.check('"input_ids":[2,5,6,3]' in tokens, f"Lathe reads {tokens} from the other cache")
        # Both at once.
        shared = self.root / "shared"
        processes = [subprocess.Popen(command, env=dict(os.environ, HF_ENDPOINT=self.url, HF_HUB_CACHE=str(shared),
                                                        HF_HOME=str(self.root / "home"), HF_HUB_DISABLE_XET="1"),
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                     for command in [[sys.executable, "-c", FETCH, NAME, *FILES],
                                     [self.bin / "apps/lathe/lathe", "download", NAME]] * 3]
        self.check(all(process.wait() == 0 for process in processes), "six at once don't all succeed")
        self.check(tree(shared / folder) == ours, "six at once make another cache")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("bazel-bin"), help="folder of built programs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        comparison = Comparison(arguments.bin.resolve(), pathlib.Path(root))
        comparison.compare()
        comparison.server.stdin.close()
        comparison.server.wait()
    print("FAILED" if comparison.failed else "the clients agree")
    return comparison.failed


sys.exit(main())
