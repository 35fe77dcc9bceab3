#!/usr/bin/env python3
"""Makes tests/golden/glue_metrics.json: the metrics that run_glue reports for each task, for data/metrics.

    python3 tests/golden/make_glue_metrics.py [OUT]

Needs scikit-learn, SciPy and NumPy. The functions are those that the metric "glue" of the package evaluate calls. run_glue
adds combined_score, the mean of the others, if there are several. Logits and scores are multiples of 1/4, so that some are equal.
"""
import json
import pathlib
import sys

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

TASKS = {"cola": 2, "mnli": 3, "mrpc": 2, "qnli": 2, "qqp": 2, "rte": 2, "sst2": 2, "stsb": 1, "wnli": 2}


def metrics(task, predicted, labels):
    if task == "cola":
        values = {"matthews_correlation": matthews_corrcoef(labels, predicted)}
    elif task == "stsb":
        values = {"pearson": pearsonr(predicted, labels)[0], "spearmanr": spearmanr(predicted, labels)[0]}
    elif task in ("mrpc", "qqp"):
        values = {"accuracy": accuracy_score(labels, predicted), "f1": f1_score(labels, predicted)}
    else:
        values = {"accuracy": accuracy_score(labels, predicted)}
    if len(values) > 1:
        values["combined_score"] = np.mean(list(values.values()))
    return {name: float(value) for name, value in values.items()}


def main():
    rng = np.random.default_rng(8)
    cases = []
    for task, num_labels in TASKS.items():
        rows = 24
        if num_labels == 1:
            labels = np.round(rng.uniform(0, 5, rows) * 4) / 4
            logits = np.round((labels + rng.normal(size=rows)) * 4) / 4
            case = {"logits": logits.tolist(), "scores": labels.tolist(), "expected": metrics(task, logits, labels)}
        else:
            labels = rng.integers(0, num_labels, rows)
            logits = np.round((rng.normal(size=(rows, num_labels)) + np.eye(num_labels)[labels]) * 4) / 4
            case = {"logits": logits.ravel().tolist(), "classes": labels.tolist(),
                    "expected": metrics(task, logits.argmax(axis=1), labels)}
        cases.append({"task": task, "num_labels": num_labels, **case})
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "glue_metrics.json"
    lines = ",\n".join(json.dumps(case) for case in cases)
    out.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
