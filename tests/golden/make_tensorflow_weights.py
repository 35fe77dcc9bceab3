#!/usr/bin/env python3
"""Lets TensorFlow write the models of make_weights.py: weights/FAMILY/tensorflow/tf_model.h5, with the same values.

  python3 tests/golden/make_tensorflow_weights.py [FAMILY ...]

The other .h5 files beside it come from a script that follows TensorFlow's layout; these show that the layout is right.
MPNet is left out, because TensorFlow's classifier has a pooler that PyTorch's lacks. Needs transformers 4, torch,
tensorflow and tf-keras. The files were made with transformers 4.46 and tensorflow 2.21.
"""
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"

from transformers import AutoConfig, TFAutoModelForSequenceClassification

FAMILIES = ["bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "albert", "deberta-v2"]
FOLDER = Path(__file__).parent / "weights"

for family in sys.argv[1:] or FAMILIES:
    folder = FOLDER / family
    with tempfile.TemporaryDirectory() as joined:
        shutil.copy(folder / "config.json", joined)
        shutil.copy(folder / "safetensors" / "model.safetensors", joined)
        model, report = TFAutoModelForSequenceClassification.from_pretrained(
            joined, from_pt=True, config=AutoConfig.from_pretrained(joined), output_loading_info=True)
        if report["missing_keys"] or report["mismatched_keys"]:
            sys.exit(f"{family}: not all weights were read: {report}")
        (folder / "tensorflow").mkdir(exist_ok=True)
        model.save_weights(folder / "tensorflow" / "tf_model.h5")
    print(family)
