"""Writes optim/optimizers/testdata/optimizers_golden.json: ten steps of each optimizer beside AdamW and SGD.

PyTorch has Adam, RMSprop, Adagrad and Adafactor. Transformers has the Adafactor of its Trainer, and timm Lion and LAMB.
Run from the repository's root with torch, transformers and timm installed:
    python tests/golden/make_more_optimizers.py > optim/optimizers/testdata/optimizers_golden.json
"""

import json
import sys

import timm
import torch
import transformers
from timm.optim import Lamb, Lion
from transformers.optimization import Adafactor as TransformersAdafactor

STEPS = 10
KEPT = [0, 1, 4, 9]  # the steps whose values are written
SHAPES = {"weight": (3, 5), "kernel": (2, 3, 4), "bias": (5,)}


def numbers(tensor):
    return [float(str(x)) for x in tensor.detach().reshape(-1).numpy()]


def draw_gradients():
    """Returns gradients that change sign and size, some of them 0."""
    generator = torch.Generator().manual_seed(1)
    steps = []
    for step in range(STEPS):
        grads = {key: torch.randn(*shape, generator=generator) * 10.0 ** (step % 5 - 3) for key, shape in SHAPES.items()}
        for grad in grads.values():
            grad.view(-1)[step % 4] = 0
        steps.append(grads)
    return steps


GRADIENTS = draw_gradients()


def case(name, make, options, groups=False, zero=False):
    """Returns a case of three parameters. With `groups` the vector has a rate of its own and no decay.

    `zero`: the vector is 0 at first.
    """
    generator = torch.Generator().manual_seed(len(name) + len(options) + 7)
    parameters = {key: torch.nn.Parameter(torch.randn(*shape, generator=generator)) for key, shape in SHAPES.items()}
    if zero:
        parameters["bias"].data.zero_()
    result = {"optimizer": name, "options": options, "groups": groups,
              "values": {key: numbers(p) for key, p in parameters.items()}, "steps": []}
    given = list(parameters.values())
    if groups:
        given = [{"params": given[:2]}, {"params": given[2:], "weight_decay": 0.0, "lr": options["lr"] / 2}]
    optimizer = make(given)
    for step in range(STEPS):
        for key, p in parameters.items():
            p.grad = GRADIENTS[step][key].clone()
        optimizer.step()
        values = {key: numbers(p) for key, p in parameters.items()} if step in KEPT else {}
        result["steps"].append(values)
    return result


def of_torch(name, options, **how):
    return case(name, lambda given: getattr(torch.optim, name)(given, **options), options, **how)


def of_transformers(options, **how):
    def make(given):
        return TransformersAdafactor(given, scale_parameter=False, relative_step=False, **options)
    return case("TransformersAdafactor", make, options, **how)


def of_timm(kind, options, **how):
    fixed = {"max_grad_norm": None, "always_adapt": True} if kind is Lamb else {}
    return case(kind.__name__, lambda given: kind(given, **options, **fixed), options, **how)


cases = [
    of_torch("Adam", {"lr": 1e-2}),
    of_torch("Adam", {"lr": 0.1, "betas": [0.8, 0.95], "weight_decay": 0.3, "eps": 1e-6}, groups=True),
    of_torch("RMSprop", {"lr": 1e-2}),
    of_torch("RMSprop", {"lr": 1e-2, "alpha": 0.9, "momentum": 0.9, "weight_decay": 0.1}, groups=True),
    of_torch("RMSprop", {"lr": 1e-2, "centered": True, "momentum": 0.5, "eps": 1e-4}),
    of_torch("RMSprop", {"lr": 1e-2, "centered": True, "eps": 1e-4}),
    of_torch("Adagrad", {"lr": 0.1}),
    of_torch("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.2, "initial_accumulator_value": 0.5}, groups=True),
    of_torch("Adafactor", {"lr": 1e-2}),
    of_torch("Adafactor", {"lr": 0.5, "weight_decay": 0.1, "beta2_decay": -0.6, "d": 1.5}, groups=True, zero=True),
    of_transformers({"lr": 1e-2}),
    of_transformers({"lr": 1e-2, "weight_decay": 0.1}, groups=True),
    of_timm(Lion, {"lr": 1e-2}),
    of_timm(Lion, {"lr": 1e-2, "betas": [0.95, 0.98], "weight_decay": 0.3}, groups=True),
    of_timm(Lamb, {"lr": 1e-2}),
    of_timm(Lamb, {"lr": 0.1, "betas": [0.8, 0.95], "weight_decay": 0.3}, groups=True, zero=True),
]
json.dump({"torch": torch.__version__, "transformers": transformers.__version__, "timm": timm.__version__,
           "gradients": [{key: numbers(grad) for key, grad in grads.items()} for grads in GRADIENTS], "cases": cases}, sys.stdout, separators=(",", ":"))
print()
