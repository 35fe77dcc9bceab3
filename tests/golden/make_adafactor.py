"""Writes optim/optimizers/testdata/adafactor_golden.json: steps of Transformers' Adafactor with rare gradients.

The gradients are 0 at first, have rows and columns of 0, few tiny rows, or rows of 1e10 and 1e-6. Products of the
moments of a row and a column would leave the range of float32 there.
Run from the repository's root with torch and transformers installed:
    python tests/golden/make_adafactor.py > optim/optimizers/testdata/adafactor_golden.json
"""

import json
import sys

import torch
import transformers
from transformers.optimization import Adafactor

STEPS = 3
LR = 0.1
SHAPES = {"unused": (4, 3), "dead": (5, 6), "table": (40, 4), "large": (3, 4)}


def numbers(tensor):
    return [float(str(x)) for x in tensor.detach().reshape(-1).numpy()]


def draw_gradients():
    generator = torch.Generator().manual_seed(2)
    steps = []
    for step in range(STEPS):
        grads = {key: torch.randn(*shape, generator=generator) for key, shape in SHAPES.items()}
        grads["unused"] *= step > 0
        grads["dead"][[1, 3]] = 0
        grads["dead"][:, 5] = 0
        grads["table"] *= 1e-7
        grads["table"][torch.arange(40) % 9 != 2] = 0
        grads["large"] *= torch.tensor([1e10, 1.0, 1e-6])[:, None]
        steps.append(grads)
    return steps


def main():
    parameters = {key: torch.nn.Parameter(torch.ones(*shape)) for key, shape in SHAPES.items()}
    optimizer = Adafactor(list(parameters.values()), lr=LR, scale_parameter=False, relative_step=False)
    steps = []
    for grads in draw_gradients():
        for key, p in parameters.items():
            p.grad = grads[key].clone()
        optimizer.step()
        steps.append({key: {"gradient": numbers(grads[key]), "values": numbers(p)} for key, p in parameters.items()})
    json.dump({"torch": torch.__version__, "transformers": transformers.__version__, "lr": LR, "shapes": SHAPES,
               "steps": steps}, sys.stdout, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
