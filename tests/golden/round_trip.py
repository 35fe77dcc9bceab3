#!/usr/bin/env python3
"""Trains each family of models with `finetune`, loads the result in Transformers, and compares.

  python3 tests/golden/round_trip.py --finetune bazel-bin/apps/finetune/finetune --lathe bazel-bin/apps/lathe/lathe
                                     --sst2 DIR [--family NAME...] [--seed N] [--work DIR]

DIR holds train.tsv and dev.tsv with the columns sentence and label. Each case of FAMILIES makes a small model with a
tokenizer of the family, and goes three ways:
  - 20 steps from fresh weights with the family's dropout rates, and 20 without dropout. Transformers must find each tensor
    in the result and no other. On 64 texts its tokenizer must give the ids of `lathe tokenize`, and its probabilities must
    be within 1e-5 of those of `lathe predict`.
  - 30 steps from weights that Transformers has saved, without dropout. Each loss must be within 1e-4, relative, of that of
    a PyTorch loop with the same batches.
Prints a line for each case, and the largest differences at the end. Ends with 1 if a limit is passed. A model_type that the
program lacks is skipped.

Needs torch, transformers (5 or later), tokenizers, sentencepiece and protobuf.
"""
import argparse
import csv
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, Trainer, get_scheduler

from relative_keys import use_relative_keys
from tokenizer_folders import CASES as TOKENIZERS
from tokenizer_folders import Folders

PREDICTED, STEPS, BATCH, LENGTH, RATE, DECAY = 64, 30, 16, 64, 1e-3, 0.01
PROBABILITY_LIMIT, LOSS_LIMIT = 1e-5, 1e-4
EVEN = dict(initializer_range=0.2, hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=64, max_position_embeddings=80)
ODD = dict(initializer_range=0.15, hidden_size=36, num_attention_heads=3, num_hidden_layers=3, intermediate_size=50, max_position_embeddings=83)
NO_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "classifier_dropout_prob",
              "summary_last_dropout", "pooler_dropout", "cls_dropout", "dropout", "attention_dropout", "seq_classif_dropout",
              "embedding_dropout", "mlp_dropout")


@dataclasses.dataclass
class Family:
    """A case: the model type, changes of the two sizes, the tokenizer's case in tokenizer_folders.py, and what the
    tokenizer's special tokens are called in the config."""
    model_type: str
    even: dict = dataclasses.field(default_factory=dict)
    odd: dict = dataclasses.field(default_factory=dict)
    tokenizer: str = "bert-uncased"
    sizes: str = "usual"
    # Lathe decays all but biases and norms. So does Trainer, but for names that look like a norm's.
    trainer_decay: bool = True
    # Transformers' result for a text depends on the padding behind it. Lathe has that of the text alone.
    alone: bool = False


def both(**options):
    return dict(even=options, odd=options)


ROBERTA = dict(tokenizer="roberta", **both(type_vocab_size=1))
DEBERTA = dict(relative_attention=True, position_biased_input=False, type_vocab_size=0, pos_att_type=["p2c", "c2p"])
FAMILIES = {
    "bert": Family("bert"),
    "bert-cased": Family("bert", tokenizer="bert-cased", **both(hidden_act="gelu_new")),
    "bert-relative-key": Family("bert", **both(position_embedding_type="relative_key")),
    "bert-relative-key-query": Family("bert", **both(position_embedding_type="relative_key_query")),
    "roberta": Family("roberta", **ROBERTA),
    "xlm-roberta": Family("xlm-roberta", **{**ROBERTA, "tokenizer": "xlm-roberta"}),
    "camembert": Family("camembert", **{**ROBERTA, "tokenizer": "camembert"}),
    "data2vec-text": Family("data2vec-text", **ROBERTA),
    "distilbert": Family("distilbert", tokenizer="distilbert", sizes="distilbert"),
    "electra": Family("electra", tokenizer="electra-vocab.txt", even=dict(embedding_size=24), odd=dict(embedding_size=36)),
    "albert": Family("albert", tokenizer="albert", even=dict(embedding_size=24),
                     odd=dict(embedding_size=20, num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2)),
    "mpnet": Family("mpnet", tokenizer="mpnet"),
    "deberta-v2": Family("deberta-v2", tokenizer="deberta-v2",
                         even=dict(**DEBERTA, position_buckets=8, norm_rel_ebd="layer_norm", share_att_key=True),
                         odd=dict(**DEBERTA, embedding_size=20)),
    "deberta-v2-conv": Family("deberta-v2", tokenizer="deberta-v2",
                              even=dict(**DEBERTA, conv_kernel_size=3, conv_act="gelu", share_att_key=True),
                              odd=dict(**DEBERTA, conv_kernel_size=5, conv_groups=2, conv_act="tanh")),
    "deberta": Family("deberta", tokenizer="deberta", even=DEBERTA, odd=dict(**DEBERTA, embedding_size=20)),
    "deberta-talking": Family("deberta", tokenizer="deberta", even=dict(**DEBERTA, talking_head=True),
                              odd=dict(talking_head=True)),
    "ernie": Family("ernie", even=dict(use_task_id=True), odd=dict(use_task_id=False)),
    "megatron-bert": Family("megatron-bert"),
    "rembert": Family("rembert", tokenizer="rembert", **both(input_embedding_size=20)),
    "roberta-prelayernorm": Family("roberta-prelayernorm", trainer_decay=False, **ROBERTA),
    "xlm-roberta-xl": Family("xlm-roberta-xl", **{**ROBERTA, "tokenizer": "xlm-roberta"}),
    "squeezebert": Family("squeezebert", even=dict(embedding_size=32),
                          odd=dict(embedding_size=36, intermediate_size=60, q_groups=3, k_groups=2, v_groups=1,
                                   post_attention_groups=4, intermediate_groups=6, output_groups=2)),
    "convbert": Family("convbert", alone=True, even=dict(embedding_size=24),
                       odd=dict(embedding_size=36, num_attention_heads=6, conv_kernel_size=5, num_groups=2)),
    # Without norms, or with ReLU and large weights, float32 itself loses the curve: PyTorch's leaves that of float64, too.
    "mobilebert": Family("mobilebert", alone=True,
                         even=dict(embedding_size=16, intra_bottleneck_size=16, initializer_range=0.1),
                         odd=dict(embedding_size=20, intra_bottleneck_size=18, use_bottleneck_attention=True, hidden_act="gelu",
                                  initializer_range=0.2, normalization_type="layer_norm", trigram_input=False)),
    "roformer": Family("roformer", even=dict(embedding_size=24), odd=dict(embedding_size=36, rotary_value=True)),
    "modernbert": Family("modernbert", tokenizer="modernbert", even=dict(num_hidden_layers=4, local_attention=8),
                         odd=dict(local_attention=10, classifier_pooling="mean")),
    "nomic_bert": Family("nomic_bert"),
    "eurobert": Family("eurobert", tokenizer="eurobert", even=dict(num_key_value_heads=2),
                       odd=dict(num_key_value_heads=1, classifier_pooling="mean")),
}


def make_config(family, size, tokenizer, dropout):
    """Returns the config of a case: `size` is "even" or "odd". Without `dropout` all rates are 0."""
    sizes = {**(EVEN if size == "even" else ODD), "vocab_size": len(tokenizer), **getattr(family, size)}
    if family.sizes == "distilbert":
        names = dict(hidden_size="dim", num_attention_heads="n_heads", num_hidden_layers="n_layers",
                     intermediate_size="hidden_dim")
        sizes = {names.get(key, key): value for key, value in sizes.items()}
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "bos", "eos", "cls", "sep")}
    ids = {key: value for key, value in ids.items() if value is not None}
    if family.model_type == "modernbert":
        ids.update(bos_token_id=tokenizer.cls_token_id, eos_token_id=tokenizer.sep_token_id)
    config = AutoConfig.for_model(family.model_type, **sizes, **ids, num_labels=2)
    if not dropout:
        for key in NO_DROPOUT:
            if hasattr(config, key):
                setattr(config, key, 0.0)
    return config


class Missing(Exception):
    """The program lacks the model type."""


def run(*arguments, stdin=None):
    done = subprocess.run(list(map(str, arguments)), input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          encoding="utf-8")
    if "is not one that Lathe has" in done.stderr:
        raise Missing(done.stderr.split("\n")[0])
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")
    return done.stdout


def finetune(a, out, *options):
    run(a.finetune, "--do_train", "--train_file", pathlib.Path(a.sst2) / "train.tsv", "--output_dir", out,
        "--overwrite_output_dir", "--learning_rate", RATE, "--weight_decay", DECAY, "--per_device_train_batch_size", BATCH,
        "--logging_steps", 1, "--max_seq_length", LENGTH, "--device", "cpu", "--disable_tqdm", "--seed", a.seed, *options)


def load(folder, problems):
    """Returns the model in `folder`; adds to `problems` what Transformers misses or doesn't know."""
    model, report = AutoModelForSequenceClassification.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager")
    for kind, found in report.items():
        if found and not (kind == "unexpected_keys" and all("distance_embedding" in key for key in found)):
            problems.append(f"{kind}: {found}")
    if getattr(model.config, "position_embedding_type", "absolute") != "absolute":  # Transformers 5 has no others
        use_relative_keys(model)
        from safetensors.torch import load_file
        model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


def batches(family, tokenizer, texts):
    """Returns the batches that the model reads: one, or one for each text."""
    parts = [[text] for text in texts] if family.alone else [texts]
    return [tokenizer(part, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt") for part in parts]


def largest_difference(a, family, folder, texts, problems):
    """Compares ids and probabilities on the texts, and returns the largest difference of a probability."""
    model, tokenizer = load(folder, problems), AutoTokenizer.from_pretrained(folder)
    lines = "".join(text + "\n" for text in texts)
    tokens = [json.loads(line) for line in run(a.lathe, "tokenize", folder, stdin=lines).splitlines()]
    whole = tokenizer(texts)["input_ids"]
    wrong = sum(ours["input_ids"] != ids for ours, ids in zip(tokens, whole, strict=True))
    if wrong:
        problems.append(f"{wrong} texts have other ids")
    said = run(a.lathe, "predict", folder, "--all_scores", "--device", "cpu", "--max_seq_length", LENGTH, stdin=lines)
    scores = [json.loads(line)["scores"] for line in said.splitlines()]
    with torch.no_grad():
        logits = torch.cat([model(**batch).logits for batch in batches(family, tokenizer, texts)])
    theirs = torch.softmax(logits.double(), -1)
    if theirs[:, 0].max() - theirs[:, 0].min() < 0.01:
        problems.append("all texts have about the same probabilities")
    ours = torch.tensor([[line[model.config.id2label[i]] for i in range(2)] for line in scores], dtype=torch.float64)
    return (ours - theirs).abs().max().item()


def reference_losses(family, folder, rows, labels):
    """Returns the losses of a PyTorch loop over the rows in order."""
    model, tokenizer = load(folder, []), AutoTokenizer.from_pretrained(folder)
    model.train()
    if family.model_type == "roformer":  # from_pretrained lets the constant sinusoids be trained
        model.roformer.encoder.embed_positions.weight.requires_grad_(False)
    named = dict(model.named_parameters())
    decay = set(Trainer.get_decay_parameter_names(None, model)) if family.trainer_decay else {
        name for name in named if not re.search("bias|layernorm", name.removeprefix(model.base_model_prefix), re.I)}
    optimizer = torch.optim.AdamW([
        {"params": [p for name, p in named.items() if name in decay], "weight_decay": DECAY},
        {"params": [p for name, p in named.items() if name not in decay], "weight_decay": 0.0}], lr=RATE)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=STEPS)
    losses = []
    for step in range(STEPS):
        place = slice(step * BATCH, (step + 1) * BATCH)
        read = batches(family, tokenizer, rows[place])
        parts = torch.tensor(labels[place]).chunk(len(read))
        loss = torch.stack([model(**batch, labels=part).loss for batch, part in zip(read, parts, strict=True)]).mean()
        loss.backward()
        losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return losses


def check(a, family, size, folders, root, data):
    """Runs a case. Returns what went wrong, and the largest differences of probabilities and of losses."""
    tokenizer_folder = folders.root / family.tokenizer
    if not tokenizer_folder.exists():
        tokenizer_folder.mkdir(parents=True)
        TOKENIZERS[family.tokenizer].make(folders, tokenizer_folder)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    problems, probability = [], 0.0
    for dropout in (True, False):
        fresh, out = root / "fresh", root / f"out-{'with' if dropout else 'without'}-dropout"
        make_config(family, size, tokenizer, dropout).save_pretrained(fresh)
        finetune(a, out, "--config_name", fresh, "--tokenizer_name", tokenizer_folder, "--max_steps", 20,
                 "--max_train_samples", 20 * BATCH)
        probability = max(probability, largest_difference(a, family, out, data["texts"], problems))

    torch.manual_seed(a.seed)
    model = AutoModelForSequenceClassification.from_config(make_config(family, size, tokenizer, False))
    use_relative_keys(model)
    start, out = root / "start", root / "curve"
    model.save_pretrained(start)
    shutil.copytree(tokenizer_folder, start, dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("config.json"))
    finetune(a, out, "--model_name_or_path", start, "--no_shuffle_train", "--max_steps", STEPS,
             "--max_train_samples", STEPS * BATCH)
    log = json.loads((out / "trainer_state.json").read_text())["log_history"]
    ours = [entry["loss"] for entry in log if "loss" in entry]
    theirs = reference_losses(family, start, data["rows"], data["labels"])
    if len(ours) != len(theirs):
        problems.append(f"finetune logged {len(ours)} losses")
    loss = max(abs(x - y) / abs(y) for x, y in zip(ours, theirs))
    if probability > PROBABILITY_LIMIT or loss > LOSS_LIMIT or max(ours) - min(ours) < 1e-3:
        problems.append("a limit is passed")
    return problems, probability, loss


def read_data(folder):
    def rows(name):
        with open(pathlib.Path(folder) / name, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    train = rows("train.tsv")
    names = sorted({row["label"] for row in train})
    return {"rows": [row["sentence"] for row in train], "labels": [names.index(row["label"]) for row in train],
            "texts": [row["sentence"] for row in rows("dev.tsv")[:PREDICTED]]}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--finetune", required=True, help="the program")
    p.add_argument("--lathe", required=True, help="the program")
    p.add_argument("--sst2", required=True, help="folder of train.tsv and dev.tsv")
    p.add_argument("--family", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--work", type=pathlib.Path, help="keep all folders in this one")
    a = p.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    data = read_data(a.sst2)
    table, failed = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        work = a.work or pathlib.Path(scratch)
        (work / "tokenizers").mkdir(parents=True, exist_ok=True)
        folders = Folders(work / "tokenizers", data["rows"], size=1500)
        for name in a.family:
            for size in ("even", "odd"):
                root = work / f"{name}-{size}"
                try:
                    problems, probability, loss = check(a, FAMILIES[name], size, folders, root, data)
                except Missing as missing:
                    print(f"{name}: skipped: {missing}", flush=True)
                    break
                except RuntimeError as error:
                    problems, probability, loss = [str(error)], float("nan"), float("nan")
                failed += bool(problems)
                table.append((f"{name}, {size}", probability, loss))
                print(*table[-1], *problems, flush=True)
    print("\n| case | probabilities | losses, relative |\n|---|---|---|")
    for name, probability, loss in table:
        print(f"| {name} | {probability:.1e} | {loss:.1e} |")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
