"""Writes models/testdata/losses_golden.json: losses with weights, smoothing and the focal factor, and their gradients.

Run from the repository's root with torch, transformers and scikit-learn installed:
    python tests/golden/make_losses.py > models/testdata/losses_golden.json
"""

import json
import sys

import numpy
import sklearn
import torch
import transformers
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional
from transformers.trainer_pt_utils import LabelSmoother

ROWS, CLASSES = 7, 4


def numbers(tensor):
    return [float(x) for x in tensor.detach().reshape(-1)]


class Inputs:
    """Random numbers that float32 holds, for computations in float64."""

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        draw = lambda *shape: torch.rand(*shape, generator=generator).double()
        self.logits = (6 * draw(ROWS, CLASSES) - 3).float().double().requires_grad_(True)
        self.classes = torch.randint(0, CLASSES, (ROWS,), generator=generator)
        self.classes[2] = -100
        self.flags = torch.randint(0, 2, (ROWS, CLASSES), generator=generator).double()
        self.scores = (4 * draw(ROWS, CLASSES) - 2).float().double()
        self.class_weights = (3 * draw(CLASSES) + 0.1).float().double()
        self.sample_weights = (2 * draw(ROWS)).float().double()
        self.sample_weights[4] = 0


def of_classes(x, class_weights, sample_weights, smoothing, gamma):
    counted = x.classes != -100
    weights = class_weights if class_weights is not None else torch.ones(CLASSES).double()
    samples = sample_weights if sample_weights is not None else torch.ones(ROWS).double()
    if gamma > 0:  # Lin et al. 2017, equation 5
        log_p = torch.log_softmax(x.logits[counted], dim=-1).gather(1, x.classes[counted, None])[:, 0]
        rows = -weights[x.classes[counted]] * (1 - log_p.exp()) ** gamma * log_p
    else:
        rows = functional.cross_entropy(x.logits[counted], x.classes[counted], weight=weights, reduction="none",
                                        label_smoothing=smoothing)
    return (samples[counted] * rows).sum() / (samples[counted] * weights[x.classes[counted]]).sum()


def of_flags(x, class_weights, sample_weights, gamma):
    samples = sample_weights if sample_weights is not None else torch.ones(ROWS).double()
    losses = functional.binary_cross_entropy_with_logits(x.logits, x.flags, pos_weight=class_weights, reduction="none")
    if gamma > 0:
        p = torch.sigmoid(x.logits)
        losses = losses * (1 - torch.where(x.flags == 1, p, 1 - p)) ** gamma
    return (samples[:, None] * losses).sum() / (samples.sum() * CLASSES)


def case(kind, loss_of, seed, class_weights=False, sample_weights=False, smoothing=0.0, gamma=0.0):
    x = Inputs(seed)
    w = x.class_weights if class_weights else None
    s = x.sample_weights if sample_weights else None
    loss = loss_of(x, w, s, smoothing, gamma)
    loss.backward()
    labels = {"single_label_classification": x.classes, "multi_label_classification": x.flags, "regression": x.scores}
    return {"kind": kind, "label_smoothing": smoothing, "focal_gamma": gamma, "logits": numbers(x.logits),
            "labels": numbers(labels[kind]), "class_weights": numbers(w) if class_weights else [],
            "sample_weights": numbers(s) if sample_weights else [], "loss": float(loss.detach()),
            "gradient": numbers(x.logits.grad)}


def classes_case(seed, **options):
    return case("single_label_classification", of_classes, seed, **options)


def flags_case(seed, **options):
    return case("multi_label_classification", lambda x, w, s, smoothing, gamma: of_flags(x, w, s, gamma), seed, **options)


def scores_case(seed, **options):
    def loss_of(x, w, s, smoothing, gamma):
        return (s[:, None] * (x.logits - x.scores) ** 2).sum() / (s.sum() * CLASSES)
    return case("regression", loss_of, seed, **options)


def smoother_case(seed, epsilon):
    """Transformers' own label smoother, whatever PyTorch's does."""
    def loss_of(x, w, s, smoothing, gamma):
        return LabelSmoother(epsilon=smoothing)({"logits": x.logits}, x.classes.clone())
    return case("single_label_classification", loss_of, seed, smoothing=epsilon)


def balanced(labels):
    classes = numpy.unique(labels)
    return {"labels": labels, "weights": list(compute_class_weight("balanced", classes=classes, y=numpy.array(labels)))}


cases = [classes_case(1, class_weights=True), classes_case(2, sample_weights=True),
         classes_case(3, class_weights=True, sample_weights=True), smoother_case(4, 0.1), smoother_case(5, 0.5),
         classes_case(6, class_weights=True, smoothing=0.1), classes_case(7, gamma=2.0),
         classes_case(8, class_weights=True, sample_weights=True, gamma=0.5), flags_case(9, class_weights=True),
         flags_case(10, class_weights=True, sample_weights=True), flags_case(11, gamma=2.0),
         flags_case(12, class_weights=True, sample_weights=True, gamma=1.5), scores_case(13, sample_weights=True)]
json.dump({"torch": torch.__version__, "transformers": transformers.__version__, "scikit-learn": sklearn.__version__,
           "rows": ROWS, "classes": CLASSES, "cases": cases,
           "balanced": [balanced([0, 0, 0, 1]), balanced([2, 0, 1, 1, 1, 2, 1])]}, sys.stdout)
print()
