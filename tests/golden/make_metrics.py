#!/usr/bin/env python3
"""Makes tests/golden/metrics.json: reports of classes and tuned decisions by scikit-learn and SciPy, for data/metrics.

    python3 tests/golden/make_metrics.py [OUT]

Needs scikit-learn, SciPy and NumPy. Logits are multiples of 1/4, so that many scores are equal. Keys of the expected values are
those of ReportJson. What scikit-learn leaves undefined (zero_division=nan, or a warning and nan) is null. A mean of
ranking scores is that of the defined ones. scikit-learn gives a label without positive samples an average precision of 0
and warns; that is null, too. The last cases also have precision-recall curves.
"""
import json
import math
import pathlib
import sys
import warnings

import numpy as np
from scipy.optimize import minimize_scalar
from sklearn.calibration import calibration_curve
from sklearn.metrics import (accuracy_score, average_precision_score, confusion_matrix, log_loss,
                             multilabel_confusion_matrix, precision_recall_curve, precision_recall_fscore_support,
                             roc_auc_score)

BINS = 15


def null(value):
    return None if value is None or math.isnan(value) else float(value)


def mean(values):
    defined = [v for v in values if v is not None]
    return float(np.mean(defined)) if defined else None


def scores(labels, predicted, average, names):
    values = precision_recall_fscore_support(labels, predicted, labels=names, average=average, zero_division=np.nan)
    return values


def averages(labels, predicted, names, support):
    out = {}
    for average in ("micro", "macro", "weighted"):
        precision, recall, f1, _ = scores(labels, predicted, average, names)
        out[average] = {"precision": null(precision), "recall": null(recall), "f1": null(f1), "support": int(support)}
    return out


def ranking(positives, values):
    both = 0 < positives.sum() < len(positives)
    return {
        "roc_auc": null(roc_auc_score(positives, values)) if both else None,
        "average_precision": null(average_precision_score(positives, values)) if positives.any() else None,
    }


def calibration_error(confidence, correct):
    """The expected calibration error of the bins of calibration_curve, which are closed on the right."""
    accuracy, mean_confidence = calibration_curve(correct, confidence, n_bins=BINS, strategy="uniform")
    bins = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], confidence)
    counts = np.bincount(bins, minlength=BINS)
    counts = counts[counts > 0]
    return float(np.sum(counts * np.abs(accuracy - mean_confidence)) / len(confidence))


def curve(positives, values):
    """The precision-recall curve; None without positive samples, where scikit-learn has a recall of 1 and warns."""
    if not positives.any():
        return None
    precision, recall, thresholds = precision_recall_curve(positives, values)
    return {"precision": precision.tolist(), "recall": recall.tolist(), "thresholds": thresholds.tolist()}


def add_curves(report, positives, probabilities):
    """Adds the curve of each label; of two classes, that of the second."""
    num_labels = len(report["classes"])
    for c in range(1 if "confusion_matrix" in report and num_labels == 2 else 0, num_labels):
        report["classes"][c]["precision_recall_curve"] = curve(positives[:, c], probabilities[:, c])


def softmax(logits):
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def report_classes(logits, labels):
    num_labels = logits.shape[1]
    names = list(range(num_labels))
    probabilities = softmax(logits)
    predicted = logits.argmax(axis=1)
    precision, recall, f1, support = scores(labels, predicted, None, names)
    classes = [{
        "precision": null(precision[c]), "recall": null(recall[c]), "f1": null(f1[c]), "support": int(support[c]),
        "predicted": int((predicted == c).sum()), **ranking(labels == c, probabilities[:, c]),
    } for c in names]
    if num_labels == 2:
        areas = roc_auc_score(labels, probabilities[:, 1])
        precisions = average_precision_score(labels, probabilities[:, 1])
    elif all(support > 0):
        areas = roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
        precisions = average_precision_score(np.eye(num_labels)[labels], probabilities, average="macro")
    else:
        areas = mean([c["roc_auc"] for c in classes])
        precisions = mean([c["average_precision"] for c in classes])
    return {
        "num_samples": len(labels),
        "accuracy": accuracy_score(labels, predicted),
        "classes": classes,
        **averages(labels, predicted, names, len(labels)),
        "confusion_matrix": confusion_matrix(labels, predicted, labels=names).tolist(),
        "roc_auc": float(areas),
        "average_precision": float(precisions),
        "log_loss": log_loss(labels, probabilities, labels=names),
        "expected_calibration_error": calibration_error(probabilities.max(axis=1), predicted == labels),
    }


def report_labels(logits, right):
    num_labels = logits.shape[1]
    probabilities = 1 / (1 + np.exp(-logits))
    predicted = (logits > 0).astype(int)
    precision, recall, f1, support = scores(right, predicted, None, None)
    confusion = multilabel_confusion_matrix(right, predicted)
    confidence = np.maximum(probabilities, 1 - probabilities)
    classes = []
    for c in range(num_labels):
        (true_negatives, false_positives), (false_negatives, true_positives) = confusion[c].tolist()
        classes.append({
            "precision": null(precision[c]), "recall": null(recall[c]), "f1": null(f1[c]), "support": int(support[c]),
            "predicted": int(predicted[:, c].sum()), **ranking(right[:, c], probabilities[:, c]),
            "log_loss": log_loss(right[:, c], probabilities[:, c], labels=[0, 1]),
            "expected_calibration_error": calibration_error(confidence[:, c], predicted[:, c] == right[:, c]),
            "confusion": {"true_negatives": true_negatives, "false_positives": false_positives,
                          "false_negatives": false_negatives, "true_positives": true_positives},
        })
    return {
        "num_samples": len(right),
        "accuracy": accuracy_score(right, predicted),
        "classes": classes,
        **averages(right, predicted, None, right.sum()),
        "roc_auc": mean([c["roc_auc"] for c in classes]),
        "average_precision": mean([c["average_precision"] for c in classes]),
        "log_loss": mean([c["log_loss"] for c in classes]),
        "expected_calibration_error": calibration_error(confidence.ravel(), (predicted == right).ravel()),
    }


def fit_temperature(loss_at):
    """Minimizes the loss over temperatures from 0.01 to 100, by their logarithm."""
    found = minimize_scalar(lambda t: loss_at(np.exp(t)), bounds=(np.log(0.01), np.log(100)), method="bounded",
                            options={"xatol": 1e-12})
    return {"temperature": float(np.exp(found.x)), "calibrated_log_loss": float(found.fun)}


def loss_of_classes(logits, labels):
    rows = np.arange(len(labels))
    return lambda t: float(np.mean(np.logaddexp.reduce(logits / t, axis=1) - logits[rows, labels] / t))


def loss_of_labels(logits, right):
    return lambda t: float(np.mean(np.logaddexp(0, logits / t) - right * logits / t))


def best_f1(right, values):
    """The highest F1 of all thresholds; None without positive samples."""
    if not right.any():
        return None
    precision, recall, _ = precision_recall_curve(right, values)
    return float(np.max(2 * precision * recall / np.maximum(precision + recall, 1e-300)))


def make_logits(rng, rows, columns, scale):
    return np.round(rng.normal(size=(rows, columns)) * scale * 4) / 4


def main():
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(32)
    cases = []

    def classes(name, logits, labels):
        cases.append({"name": name, "kind": "single", "num_labels": logits.shape[1], "logits": logits.ravel().tolist(),
                      "classes": labels.tolist(), "expected": report_classes(logits, labels),
                      **fit_temperature(loss_of_classes(logits, labels))})

    def several(name, logits, right):
        cases.append({"name": name, "kind": "multi", "num_labels": logits.shape[1], "logits": logits.ravel().tolist(),
                      "scores": right.ravel().tolist(), "expected": report_labels(logits, right),
                      "best_f1": [best_f1(right[:, c], logits[:, c]) for c in range(logits.shape[1])],
                      **fit_temperature(loss_of_labels(logits, right))})

    logits = make_logits(rng, 60, 2, 1.5)
    classes("two classes", logits, (logits[:, 1] - logits[:, 0] + rng.normal(size=60) > 0).astype(int))
    logits = make_logits(rng, 60, 3, 1.5)
    classes("three classes", logits, (logits + rng.normal(size=(60, 3))).argmax(axis=1))
    logits = make_logits(rng, 40, 5, 1)
    logits[:, 3] = -8  # never predicted
    labels = (logits + rng.normal(size=(40, 5))).argmax(axis=1)
    labels[labels == 4] = 0  # a class without samples
    labels[:3] = 3
    classes("a class without samples and one that is never predicted", logits, labels)
    logits = make_logits(rng, 30, 2, 6)
    classes("very sure", logits, np.where(np.arange(30) < 20, logits.argmax(axis=1), rng.integers(0, 2, 30)))
    logits = make_logits(rng, 50, 4, 1.5)
    several("several labels", logits, (logits + rng.normal(size=(50, 4)) > 0).astype(int))
    logits = make_logits(rng, 30, 4, 1)
    right = (logits + rng.normal(size=(30, 4)) > 0).astype(int)
    right[:, 1] = 0  # a label without samples
    right[:, 2] = 1  # one that every sample has
    logits[:, 3] = -np.abs(logits[:, 3]) - 0.25  # one that is never predicted
    several("labels without samples, with all, and never predicted", logits, right)

    # The cases above have no curves.
    logits = make_logits(rng, 30, 2, 1.5)
    classes("a curve of two classes", logits, (logits[:, 1] - logits[:, 0] + rng.normal(size=30) > 0).astype(int))
    add_curves(cases[-1]["expected"], np.eye(2)[cases[-1]["classes"]], softmax(logits))
    logits = make_logits(rng, 24, 3, 1)
    labels = (logits + rng.normal(size=(24, 3))).argmax(axis=1)
    labels[labels == 2] = 0  # a class without samples
    classes("curves of three classes, one of them without samples", logits, labels)
    add_curves(cases[-1]["expected"], np.eye(3)[labels], softmax(logits))
    logits = make_logits(rng, 24, 3, 1)
    right = (logits + rng.normal(size=(24, 3)) > 0).astype(int)
    right[:, 1] = 0  # a label without samples
    right[:, 2] = 1  # one that every sample has
    several("curves of several labels", logits, right)
    add_curves(cases[-1]["expected"], right, 1 / (1 + np.exp(-logits)))

    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "metrics.json"
    lines = ",\n".join(json.dumps(case) for case in cases)
    out.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
