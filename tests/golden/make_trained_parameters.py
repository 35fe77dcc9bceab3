"""Writes train/parameters/testdata/trained_parameters_golden.json: 20 steps of Transformers' models with frozen layers, rates by layer and SGD.

Run from the repository's root with torch and transformers installed:
    python tests/golden/make_trained_parameters.py > train/parameters/testdata/trained_parameters_golden.json

The models lie in tests/golden/models, and have no dropout and two layers. Most cases take BERT, and "families" takes others.
Each step takes 4 of 16 samples in order. The optimizer's groups are built here by the formula that docs/training.md gives.
Those of SGD are Trainer's, too. All is computed in float64. For each of the families, "zero_gradients" names the parameters
whose gradients are zero but for rounding errors. AdamW divides these by their own size, so such a parameter moves at random.
In float32 PyTorch itself then ends up to 0.002 away from its results in float64. A key's bias is the usual one: it adds the same
number to all scores of a row.
"""

import json
import re
import sys

import torch
import transformers
from transformers import AutoModelForSequenceClassification, get_scheduler

MODEL = "tests/golden/models/bert-classes"
STEPS, BATCH, SAMPLES, LAYERS, RATE, DECAY = 20, 4, 16, 2, 2e-3, 0.05

generator = torch.Generator().manual_seed(1)
LENGTHS = [int(x) for x in torch.randint(2, 13, (SAMPLES,), generator=generator)]
IDS = [[int(x) for x in torch.randint(1, 61, (n,), generator=generator)] for n in LENGTHS]
LABELS = [int(x) for x in torch.randint(0, 4, (SAMPLES,), generator=generator)]


def depth_of(name):
    layer = re.search(r"\.layer\.(\d+)\.", name)
    return int(layer[1]) + 1 if layer else 0 if ".embeddings." in name else LAYERS + 1


def is_frozen(name, wish):
    if wish == "":
        return False
    if wish == "embeddings":
        return depth_of(name) == 0
    if wish == "encoder":
        return name.startswith("bert.")
    if wish.isdigit():
        return depth_of(name) <= int(wish)
    return re.search(wish, name) is not None


def run(freeze_layers="", layerwise_lr_decay=1.0, head_learning_rate=0.0, learning_rate=RATE, sgd=None):
    model = AutoModelForSequenceClassification.from_pretrained(MODEL).double().train()
    groups = []
    for name, parameter in model.named_parameters():
        if is_frozen(name, freeze_layers):
            parameter.requires_grad_(False)
            continue
        rate = learning_rate * layerwise_lr_decay ** (LAYERS + 1 - depth_of(name))
        if head_learning_rate > 0 and not name.startswith("bert."):
            rate = head_learning_rate
        decays = not name.endswith("bias") and "LayerNorm" not in name
        groups.append({"params": [parameter], "lr": rate, "weight_decay": DECAY if decays else 0.0})
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW(groups, eps=1e-8) if sgd is None else torch.optim.SGD(groups, **sgd)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=STEPS)
    losses = []
    for step in range(STEPS):
        rows = [(step * BATCH + i) % SAMPLES for i in range(BATCH)]
        width = max(LENGTHS[r] for r in rows)
        ids = torch.tensor([IDS[r] + [0] * (width - LENGTHS[r]) for r in rows])
        mask = torch.tensor([[1] * LENGTHS[r] + [0] * (width - LENGTHS[r]) for r in rows])
        loss = model(input_ids=ids, attention_mask=mask, labels=torch.tensor([LABELS[r] for r in rows])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    changes = {name: float((parameter.detach() - start[name]).norm()) for name, parameter in model.named_parameters()}
    case = {"freeze_layers": freeze_layers, "layerwise_lr_decay": layerwise_lr_decay,
            "head_learning_rate": head_learning_rate, "losses": losses, "changes": changes}
    if sgd is not None:
        case |= {"learning_rate": learning_rate, "optim_args": ",".join(f"{k}={v}" for k, v in sgd.items())}
    return case


# What comes before the first layer, as the table in docs/training.md has it.
EMBEDDINGS = {"convbert": ("embeddings.", "embeddings_project."),
              "deberta-v2-conv": ("embeddings.", "encoder.rel_embeddings.", "encoder.LayerNorm."),
              "mpnet": ("embeddings.", "encoder.relative_attention_bias."),
              "rembert": ("embeddings.", "encoder.embedding_hidden_mapping_in.")}
FAMILY_IDS = [[5 + i % 56 for i in ids] for ids in IDS]


def run_family(folder, freeze_layers, layerwise_lr_decay, head_learning_rate):
    model = AutoModelForSequenceClassification.from_pretrained("tests/golden/models/" + folder).double().train()
    base = model.base_model_prefix + "."
    labels = [label % model.config.num_labels for label in LABELS]
    decays = set(transformers.Trainer.get_decay_parameter_names(None, model))

    def depth(name):
        layer = re.search(r"\.layer\.(\d+)\.", name)
        if layer:
            return int(layer[1]) + 1
        if name.startswith(tuple(base + part for part in EMBEDDINGS[folder])):
            return 0
        return 1 if name.startswith(base + "encoder.conv.") else LAYERS + 1

    groups, largest = [], {}
    for name, parameter in model.named_parameters():
        if freeze_layers == "embeddings" and depth(name) == 0:
            parameter.requires_grad_(False)
            continue
        rate = RATE * layerwise_lr_decay ** (LAYERS + 1 - depth(name))
        if head_learning_rate > 0 and not name.startswith(base):
            rate = head_learning_rate
        largest[name] = 0.0
        groups.append({"params": [parameter], "lr": rate, "weight_decay": DECAY if name in decays else 0.0})
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW(groups, eps=1e-8)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=STEPS)
    losses = []
    for step in range(STEPS):
        loss = 0.0
        for row in [(step * BATCH + i) % SAMPLES for i in range(BATCH)]:  # alone, since ConvBERT reads padding
            part = model(input_ids=torch.tensor([FAMILY_IDS[row]]), labels=torch.tensor([labels[row]])).loss / BATCH
            part.backward()
            loss += float(part.detach())
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                largest[name] = max(largest[name], float(parameter.grad.abs().max()))
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss)
    return {"model": folder, "labels": labels, "freeze_layers": freeze_layers, "layerwise_lr_decay": layerwise_lr_decay,
            "head_learning_rate": head_learning_rate, "losses": losses,
            "changes": {name: float((parameter.detach() - start[name]).norm())
                        for name, parameter in model.named_parameters()},
            "zero_gradients": [name for name, size in largest.items() if size < 1e-12]}


cases = [run(), run("1"), run("2"), run("embeddings"), run("encoder"), run(r"attention\.self\.(key|query)\.weight"),
         run(layerwise_lr_decay=0.7), run(head_learning_rate=1e-2),
         run("embeddings", layerwise_lr_decay=0.5, head_learning_rate=5e-3),
         run(learning_rate=0.2, sgd={}),
         run(learning_rate=0.05, sgd={"momentum": 0.9, "nesterov": True}),
         run("1", head_learning_rate=0.1, learning_rate=0.05, sgd={"momentum": 0.8, "dampening": 0.3})]
json.dump({"torch": torch.__version__, "transformers": transformers.__version__, "learning_rate": RATE,
           "weight_decay": DECAY, "batch_size": BATCH, "ids": IDS, "labels": LABELS, "cases": cases, "family_ids": FAMILY_IDS,
           "families": [run_family(folder, *options) for folder in EMBEDDINGS
                        for options in (("", 0.7, 0.0), ("embeddings", 0.5, 5e-3))]}, sys.stdout)
print()
