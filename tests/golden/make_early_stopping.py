"""Writes train/callbacks/testdata/early_stopping.json: when Transformers' EarlyStoppingCallback stops.

Run from the repository's root with transformers installed:
    python tests/golden/make_early_stopping.py > train/callbacks/testdata/early_stopping.json
"""

import json
import random
import types

import transformers
from transformers import EarlyStoppingCallback, Trainer, TrainerControl, TrainerState

METRICS = {"loss": False, "accuracy": True, "eval_f1": True}


def case(metric, patience, threshold, values):
    """Returns the count after each evaluation, up to the one that stops the training."""
    callback = EarlyStoppingCallback(patience, threshold)
    args = types.SimpleNamespace(metric_for_best_model=metric, greater_is_better=METRICS[metric], save_strategy="no")
    state, control = TrainerState(), TrainerControl()
    trainer = types.SimpleNamespace(args=args, state=state)
    name = metric if metric.startswith("eval_") else "eval_" + metric
    counts = []
    for value in values:
        # Trainer evaluates, which calls the callbacks, and compares with the best metric afterwards.
        callback.on_evaluate(args, state, control, {name: value})
        Trainer._determine_best_metric(trainer, {name: value}, None)
        counts.append(callback.early_stopping_patience_counter)
        if control.should_training_stop:
            break
    return {"metric": metric, "patience": patience, "threshold": threshold, "values": values, "counts": counts,
            "stops": control.should_training_stop}


def main():
    cases = [
        case("loss", 1, 0.0, [1.0, 1.0]),
        case("loss", 2, 0.0, [1.0, 0.9, 0.95, 0.85, 0.9, 0.91]),
        # The best value creeps on by less than the threshold, and the count grows all the same.
        case("loss", 3, 0.1, [1.0, 0.95, 0.9, 0.85, 0.8]),
        case("accuracy", 2, 0.1, [0.5, 0.55, 0.66, 0.7, 0.82]),
        case("accuracy", 2, 0.25, [0.5, 0.75, 1.0]),  # an improvement by just the threshold
        case("eval_f1", 2, 0.0, [0.0, 0.0, 0.1, 0.1, 0.1, 0.5]),
    ]
    generator = random.Random(42)
    for _ in range(60):
        metric = generator.choice(list(METRICS))
        values = [round(generator.uniform(0, 1), generator.choice([1, 3])) for _ in range(12)]
        cases.append(case(metric, generator.randint(1, 4), generator.choice([0.0, 0.05, 0.3]), values))
    print('{"transformers": %s, "cases": [' % json.dumps(transformers.__version__))
    print(",\n".join(json.dumps(each) for each in cases))
    print("]}")


if __name__ == "__main__":
    main()
