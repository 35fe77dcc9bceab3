"""Writes apps/options/testdata/transformers_arguments.json: the arguments of TrainingArguments and of two example scripts.

Run from the repository's root with transformers installed:
    python tests/golden/list_arguments.py > apps/options/testdata/transformers_arguments.json
The scripts are not part of the package, so their arguments are written down here.
"""

import dataclasses
import json
import typing

import transformers
from transformers import TrainingArguments

MODEL = [
    ("model_name_or_path", "str", None), ("config_name", "str", None), ("tokenizer_name", "str", None),
    ("cache_dir", "str", None), ("use_fast_tokenizer", "bool", True), ("model_revision", "str", "main"),
    ("token", "str", None), ("trust_remote_code", "bool", False), ("ignore_mismatched_sizes", "bool", False),
]
DATA = [
    ("dataset_name", "str", None), ("dataset_config_name", "str", None), ("max_seq_length", "int", 128),
    ("overwrite_cache", "bool", False), ("pad_to_max_length", "bool", True), ("max_train_samples", "int", None),
    ("max_eval_samples", "int", None), ("max_predict_samples", "int", None), ("train_file", "str", None),
    ("validation_file", "str", None), ("test_file", "str", None),
]
SCRIPTS = {
    "run_glue": MODEL + DATA + [("task_name", "str", None)],
    "run_classification": MODEL + DATA + [
        ("do_regression", "bool", None), ("text_column_names", "str", None), ("text_column_delimiter", "str", " "),
        ("train_split_name", "str", None), ("validation_split_name", "str", None), ("test_split_name", "str", None),
        ("remove_splits", "str", None), ("remove_columns", "str", None), ("label_column_name", "str", None),
        ("preprocessing_num_workers", "int", None), ("shuffle_train_dataset", "bool", False),
        ("shuffle_seed", "int", 42), ("metric_name", "str", None),
    ],
}


def kind(field_type):
    """Returns bool, int, float, str, list or dict: what a value of the field is, if it is not None."""
    members = [t for t in typing.get_args(field_type) if t is not type(None)] or [field_type]
    names = [getattr(typing.get_origin(t) or t, "__name__", str(t)) for t in members]
    for name in ("str", "list", "dict", "bool", "int", "float"):
        if name in names:
            return name
    return "str"  # an enumeration, or an object that only Python can make


def training_arguments():
    for field in dataclasses.fields(TrainingArguments):
        if not field.init:
            continue
        default = field.default
        if default is dataclasses.MISSING:
            default = field.default_factory() if field.default_factory is not dataclasses.MISSING else None
        yield field.name, kind(field.type), getattr(default, "value", default)


def main():
    rows = [("TrainingArguments",) + row for row in training_arguments()]
    rows += [(script,) + row for script, arguments in SCRIPTS.items() for row in arguments]
    print('{"transformers": %s, "arguments": [' % json.dumps(transformers.__version__))
    print(",\n".join(json.dumps(dict(zip(("of", "name", "type", "default"), row))) for row in rows))
    print("]}")


if __name__ == "__main__":
    main()
