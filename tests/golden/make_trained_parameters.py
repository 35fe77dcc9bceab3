"""Writes train/parameters/testdata/trained_parameters_golden.json: 20 steps of Transformers' BERT with frozen layers, rates by layer and SGD.

Run from the repository's root with torch and transformers installed:
    python tests/golden/make_trained_parameters.py > train/parameters/testdata/trained_parameters_golden.json

The model is tests/golden/models/bert-classes, which has no dropout and two layers. Each step takes 4 of 16 samples in
order. The optimizer's groups are built here by the formula that docs/training.md gives. Those of SGD are Trainer's, too.
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


cases = [run(), run("1"), run("2"), run("embeddings"), run("encoder"), run(r"attention\.self\.(key|query)\.weight"),
         run(layerwise_lr_decay=0.7), run(head_learning_rate=1e-2),
         run("embeddings", layerwise_lr_decay=0.5, head_learning_rate=5e-3),
         run(learning_rate=0.2, sgd={}),
         run(learning_rate=0.05, sgd={"momentum": 0.9, "nesterov": True}),
         run("1", head_learning_rate=0.1, learning_rate=0.05, sgd={"momentum": 0.8, "dampening": 0.3})]
json.dump({"torch": torch.__version__, "transformers": transformers.__version__, "learning_rate": RATE,
           "weight_decay": DECAY, "batch_size": BATCH, "ids": IDS, "labels": LABELS, "cases": cases}, sys.stdout)
print()
