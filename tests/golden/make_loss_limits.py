"""Writes nn/modules/testdata/loss_limits_golden.json: losses of elements at and beyond limits, with their gradients.

PyTorch computes them in float64 from numbers that float32 holds.
Run from the repository's root with torch installed:
    python tests/golden/make_loss_limits.py > nn/modules/testdata/loss_limits_golden.json
"""

import json
import sys

import torch
from torch.nn import functional


def numbers(tensor):
    return [float(x) for x in tensor.detach().reshape(-1)]


def case(loss, function, options, inputs, target=None, slack=0.0):
    """Returns a case. `slack` is added to the errors that the losses and the gradients may have."""
    leaves = {key: torch.tensor(x).double().requires_grad_(True) for key, x in inputs.items()}
    given = [] if target is None else [torch.tensor(target).double()]
    losses = function(*leaves.values(), *given, reduction="none", **options)
    losses.sum().backward()
    return {"loss": loss, "options": options, "slack": slack, "target": [] if target is None else numbers(given[0]),
            "inputs": {key: numbers(x) for key, x in leaves.items()}, "losses": numbers(losses),
            "grads": {key: numbers(x.grad) for key, x in leaves.items()}}


def smooth_l1(beta):
    errors = [0.0, 1e-30, 1e-3, 0.0625, 0.1, 0.5, 1.0, 1.5, 33.0, 1e3, 1e5, 1e6, 3e7, 1e20, 1e38]
    errors += [-x for x in errors]
    return case("smooth_l1", functional.smooth_l1_loss, {"beta": beta}, {"input": errors}, [0.0] * len(errors))


def bce(target):
    x = [0.0, 1e-37, 1e-20, 1e-13, 1e-9, 1e-7, 3e-6, 1e-3, 0.3, 0.5, 0.75, 0.99, 0.99999, 0.999999, 0.9999999, 1.0]
    return case("bce", functional.binary_cross_entropy, {}, {"input": x}, [target] * len(x))


def triplet(anchor, positive, negative, **options):
    return case("triplet", functional.triplet_margin_loss, options,
                {"anchor": anchor, "positive": positive, "negative": negative}, slack=1e-6)


FAR = [[0.0, 0.0], [1.0, 2.0]], [[1e6, 0.0], [3e5, 2.0]], [[1e6, 0.125], [3e5, 2.5]]
SAME = [[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]], [[0.5, 0.0], [0.0, 0.0]]
cases = [smooth_l1(beta) for beta in (1.0, 0.5, 0.1, 0.01, 100.0)] + [bce(target) for target in (0.0, 0.25, 1.0)] + [
    triplet(*FAR, swap=True), triplet(*FAR, swap=True, p=1.0), triplet(*FAR, swap=False),
    triplet(*SAME, eps=0.0), triplet(*SAME, eps=0.0, swap=True), triplet(*SAME, eps=0.0, swap=True, p=1.0),
    triplet(*SAME, eps=0.0, margin=0.5)]
json.dump({"torch": torch.__version__, "cases": cases}, sys.stdout, separators=(",", ":"))
print()
