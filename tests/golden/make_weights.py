#!/usr/bin/env python3
"""Makes the files of weights beside this file, in weights/: tiny random classifiers in each format that Lathe reads.

  python3 tests/golden/make_weights.py [FAMILY ...]       # needs torch, transformers, safetensors

weights/FAMILY holds config.json, expected.safetensors (token ids and Transformers' logits in float64), and a folder for
each format. All weights are multiples of 1/64 below 2, which float16 and bfloat16 hold exactly, so each format has the
same values. The files were made with torch 2.15 and transformers 5.24.
"""
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForSequenceClassification

SIZES = dict(vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12,
             max_position_embeddings=12, num_labels=3, pad_token_id=0)
FAMILIES = {
    "bert": dict(),
    "roberta": dict(type_vocab_size=1, pad_token_id=1),
    "distilbert": dict(vocab_size=11, dim=8, n_layers=1, n_heads=2, hidden_dim=12),
    "electra": dict(embedding_size=6),
    "albert": dict(embedding_size=6),
    "mpnet": dict(pad_token_id=1),
    "deberta-v2": dict(relative_attention=True, position_buckets=4, norm_rel_ebd="layer_norm", share_att_key=True,
                       pos_att_type="p2c|c2p", position_biased_input=False, conv_kernel_size=3),
    "modernbert": dict(global_attn_every_n_layers=1, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2),
}
IDS = [[3, 5, 7, 9, 2], [6, 10, 3, 4, 2]]
FOLDER = Path(__file__).parent / "weights"


def make_model(family):
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SIZES, **FAMILIES[family]})
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randint(-60, 61, p.shape) / 64)
    return model


def strange(state):
    """The same values with other strides, and several tensors in one storage."""
    biases = [name for name, value in state.items() if value.dim() == 1]
    flat = torch.cat([state[name] for name in biases])
    result, at = {}, 0
    for name, value in state.items():
        if name in biases:
            result[name] = flat[at:at + len(value)]
            at += len(value)
        else:
            result[name] = torch.nn.Parameter(value.t().contiguous().t() if value.dim() == 2 else value)
    return result


def in_shards(state, folder, ending, save):
    """Saves the tensors in turn to two files with an index."""
    files = [f"pytorch_model-0000{i}-of-00002{ending}" for i in (1, 2)]
    weight_map = {name: files[i % 2] for i, name in enumerate(state)}
    for file in files:
        save({name: value for name, value in state.items() if weight_map[name] == file}, folder / file)
    index = dict(metadata=dict(total_size=0), weight_map=weight_map)
    (folder / f"pytorch_model{ending}.index.json").write_text(json.dumps(index, indent=2))


def save_old(state, file):
    torch.save(state, file, _use_new_zipfile_serialization=False)


def main(families):
    for family in families:
        model = make_model(family)
        state = model.state_dict()
        folder = FOLDER / family

        def sub(name):
            (folder / name).mkdir(parents=True, exist_ok=True)
            return folder / name

        sub("")
        model.config.save_pretrained(folder)
        plain = {name: value.contiguous() for name, value in state.items()}
        save_file(plain, sub("safetensors") / "model.safetensors", metadata={"format": "pt"})
        torch.save(state, sub("zip") / "pytorch_model.bin")
        if family == "bert":
            save_old(state, sub("old") / "pytorch_model.bin")
            torch.save(strange(state), sub("strange") / "pytorch_model.bin")
            save_old(strange(state), sub("strange-old") / "pytorch_model.bin")
            for name, dtype in [("f16", torch.float16), ("bf16", torch.bfloat16), ("f64", torch.float64)]:
                torch.save({n: value.to(dtype) for n, value in state.items()}, sub(name) / "pytorch_model.bin")
            in_shards(state, sub("shards"), ".bin", torch.save)
            in_shards(state, sub("shards-old"), ".bin", save_old)
        with torch.no_grad():
            ids = torch.tensor(IDS)
            logits = model.double()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        save_file({"input_ids": ids, "logits": logits.double()}, folder / "expected.safetensors")


if __name__ == "__main__":
    main(sys.argv[1:] or FAMILIES)
