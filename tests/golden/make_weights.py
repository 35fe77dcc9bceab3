#!/usr/bin/env python3
"""Makes the files of weights beside this file, in weights/: tiny random classifiers in each format that Lathe reads.

  python3 tests/golden/make_weights.py [FAMILY ...]       # needs torch, transformers, safetensors, h5py

Every family has: safetensors; pytorch_model.bin as zip, in the old form, with float16, and in shards; and, if TensorFlow
has the family, tf_model.h5 whole and in shards. BERT has more: bfloat16, float64, strides, old shards, old files of other
pickle protocols, packed HDF5, HDF5 as early versions of Transformers 4 wrote it, and checkpoints of training programs:
Lightning's, a loop's, DataParallel's.
weights/FAMILY holds config.json, expected.safetensors (token ids and Transformers' logits in float64), and a folder for
each format. All weights are multiples of 1/64 below 2, which float16 and bfloat16 hold exactly, so each format has the
same values. Transformers wrote tf_model.h5 until version 4, with TensorFlow. The files here have its layout and its names.
The script also writes weights_rare, files that Keras doesn't write; weights_refused, files that must be refused; and
../fuzz/corpus/pytorch.
The files were made with torch 2.15, transformers 5.24 and h5py 3.16.
"""
import json
import os
import re
import sys
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path

import h5py
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForSequenceClassification

SIZES = dict(vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12,
             max_position_embeddings=12, num_labels=3, pad_token_id=0)
FAMILIES = {
    "bert": dict(),
    "roberta": dict(type_vocab_size=1, pad_token_id=1),
    "xlm-roberta": dict(type_vocab_size=1, pad_token_id=1),
    "camembert": dict(type_vocab_size=1, pad_token_id=1),
    "distilbert": dict(vocab_size=11, dim=8, n_layers=1, n_heads=2, hidden_dim=12),
    "electra": dict(embedding_size=6),
    "albert": dict(embedding_size=6),
    "convbert": dict(embedding_size=6, num_attention_heads=4, head_ratio=2, conv_kernel_size=3, num_groups=1),
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


def save_training_checkpoints(state, sub):
    """The layouts of Lightning, of a loop with DataParallel, and of the latter alone."""
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([parameter])
    parameter.sum().backward()
    optimizer.step()
    torch.save({"epoch": 1, "global_step": 3, "pytorch-lightning_version": "2.5.0",
                "state_dict": OrderedDict(("model." + name, value) for name, value in state.items()),
                "loops": {"fit_loop": {"state_dict": {}}}, "lr_schedulers": [],
                "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.5), "best_model_path": ""}},
                "optimizer_states": [optimizer.state_dict()], "hyper_parameters": {"learning_rate": 1e-3}},
               sub("lightning") / "pytorch_model.bin")
    parallel = OrderedDict(("module." + name, value) for name, value in state.items())
    save_old({"epoch": 1, "model_state_dict": parallel, "optimizer_state_dict": optimizer.state_dict(), "loss": torch.tensor(0.5)},
             sub("loop") / "pytorch_model.bin")
    save_old(parallel, sub("data-parallel") / "pytorch_model.bin")


def in_shards(state, folder, ending, save):
    """Saves the tensors in turn to two files with an index."""
    files = [f"pytorch_model-0000{i}-of-00002{ending}" for i in (1, 2)]
    weight_map = {name: files[i % 2] for i, name in enumerate(state)}
    for file in files:
        save({name: value for name, value in state.items() if weight_map[name] == file}, folder / file)
    index = dict(metadata=dict(total_size=0), weight_map=weight_map)
    (folder / f"pytorch_model{ending}.index.json").write_text(json.dumps(index, indent=2))


def tensorflow_weights(model):
    """TensorFlow's names, without the model's class, and arrays."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    for name, parameter in model.named_parameters():
        path, last = name.rsplit(".", 1)
        path = re.sub(r"\.(\d+)\b", r"_@_\1", path).replace(".", "/").replace("@", ".")  # parts of lists: layer_._0
        value = parameter.detach().numpy()
        if name.endswith("rel_embeddings.weight"):
            yield name.replace(".", "/", 2) + ":0", value  # a variable with a dot in its name
            continue
        if id(parameter) in embeddings:
            last = "weight" if "word_embeddings" in name else "embeddings"
        elif path.endswith("depthwise"):  # of SeparableConv1D, as the next two
            path, last, value = path.removesuffix("/depthwise"), "depthwise_kernel", value.transpose(2, 0, 1)
        elif path.endswith("pointwise"):
            path, last, value = path.removesuffix("/pointwise"), "pointwise_kernel", value.T
        elif path.endswith("key_conv_attn_layer"):
            value = value.reshape(-1)
        elif "norm" in path.split("/")[-1].lower():
            last = {"weight": "gamma", "bias": "beta"}[last]
        elif last == "weight":
            last, value = "kernel", value.T  # of three dimensions, too
        yield path + "/" + last + ":0", value


def einsum_weights(model):
    """The same as tensorflow_weights, but attention's weights have a dimension for heads: early versions of 4 had it."""
    heads = model.config.num_attention_heads
    for name, value in tensorflow_weights(model):
        if "/attention/self/" in name:
            value = value.reshape(*value.shape[:-1], heads, -1)
        elif name.endswith("/attention/output/dense/kernel:0"):
            value = value.reshape(heads, -1, value.shape[-1])
        yield name, value


def save_h5(model, file, named_weights=tensorflow_weights):
    """As Keras' save_weights."""
    names = "tf_" + model.config.model_type.replace("-", "_") + "_for_sequence_classification"
    layers = {"dropout_1": []}
    for name, value in named_weights(model):
        layers.setdefault(name.split("/")[0], []).append((f"{names}/{name}", value))
    with h5py.File(file, "w") as f:
        f.attrs["layer_names"] = np.array([name.encode() for name in layers])
        f.attrs["backend"], f.attrs["keras_version"] = b"tensorflow", b"2.6.0"
        for layer, weights in layers.items():
            group = f.create_group(layer)
            # Long lists are cut, as those of large models are.
            half = len(weights) // 2
            if layer == model.config.model_type and half > 0:
                group.attrs["weight_names0"] = np.array([n.encode() for n, _ in weights[:half]])
                group.attrs["weight_names1"] = np.array([n.encode() for n, _ in weights[half:]])
            else:
                group.attrs["weight_names"] = np.array([n.encode() for n, _ in weights])
            for name, value in weights:
                group.create_dataset(name, data=value)


def save_h5_packed(model, file):
    """Compressed, in pieces, and with names of any length."""
    with h5py.File(file, "w") as f:
        weights = {"tf_model/" + name: value for name, value in tensorflow_weights(model)}
        f.attrs["layer_names"] = ["all"]
        group = f.create_group("all")
        group.attrs["weight_names"] = list(weights)
        for name, value in weights.items():
            chunks = tuple(min(n, 5) for n in value.shape)
            group.create_dataset(name, data=value, chunks=chunks, compression="gzip", shuffle=True, fletcher32=True)


def save_rare(folder):
    """Files of HDF5 that Keras doesn't write but that a reader of weights takes: "w" is 0 to 15, and "v" 16 to 31."""
    folder.mkdir(exist_ok=True)
    w, v = np.arange(32, dtype=np.float32).reshape(2, 4, 4)
    for size in [512, 4096]:
        with h5py.File(folder / f"user_block_{size}.h5", "w", userblock_size=size) as f:
            f.attrs["layer_names"] = [b"layer"]
            group = f.create_group("layer")
            group.attrs["weight_names"] = [b"m/w:0", b"m/v:0"]
            group.create_dataset("m/w:0", data=w)
            group.create_dataset("m/v:0", data=v, chunks=(3, 3), compression="gzip")
    with h5py.File(folder / "soft_links.h5", "w") as f:
        f.attrs["layer_names"] = [b"layer"]
        f["layer"] = h5py.SoftLink("/store/./first")
        group = f.create_group("store/first")
        group.attrs["weight_names"] = [b"m/w:0", b"m/v:0"]
        group["m/w:0"] = h5py.SoftLink("/store/values/w")
        group["m/v:0"] = h5py.SoftLink("inner/v")
        group["m/inner"] = h5py.SoftLink("/store/values")
        f["store/values/w"] = w
        f["store/values/v"] = v


def save_refused(folder):
    """Files that a reader of weights must refuse, each with one variable."""
    folder.mkdir(exist_ok=True)

    def save(name, add, variable="w:0"):
        with h5py.File(folder / (name + ".h5"), "w") as f:
            f.attrs["layer_names"] = [b"layer"] if name != "no_names" else np.zeros(0, "S1")
            group = f.create_group("layer")
            group.attrs["weight_names"] = [("layer/" + variable).encode()]
            add(group.create_group("layer"))

    values = np.ones((4, 4), np.float32)
    save("soft_link", lambda g: g.__setitem__("soft:0", h5py.SoftLink("/layer/other")), "soft:0")

    def add_circle(group):
        group["a"] = h5py.SoftLink("b")
        group["b"] = h5py.SoftLink("/layer/layer/a")

    save("circle", add_circle, "a/w:0")

    def add_way_out(group):  # through a soft link to another file
        group["out"] = h5py.ExternalLink("/etc/passwd", "/x")
        group["soft:0"] = h5py.SoftLink("out/w")

    save("way_out", add_way_out, "soft:0")
    save("external_link", lambda g: g.__setitem__("external:0", h5py.ExternalLink("/etc/passwd", "/x")), "external:0")
    save("external_elements", lambda g: g.create_dataset("w:0", (4, 4), "f4", external=[("/etc/passwd", 0, 64)]))
    save("missing", lambda g: None, "none:0")
    layout = h5py.VirtualLayout((4, 4), "f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (4, 4))
    save("virtual", lambda g: g.create_virtual_dataset("w:0", layout))
    save("big_endian", lambda g: g.create_dataset("w:0", data=values.astype(">f4")))
    save("text", lambda g: g.create_dataset("w:0", data=[b"text"]))
    save("other_filter", lambda g: g.create_dataset("w:0", data=values, compression="lzf"))
    save("bomb", lambda g: g.create_dataset("w:0", data=np.zeros((1024, 4096), np.float32), chunks=(1024, 4096),
                                            compression="gzip", compression_opts=9))
    save("no_names", lambda g: g.create_dataset("w:0", data=values))
    with h5py.File(folder / "two_values.h5", "w") as f:  # of one tensor's name
        f.attrs["layer_names"] = [b"one", b"two"]
        for layer, factor in [("one", 1), ("two", 2)]:
            group = f.create_group(layer)
            group.attrs["weight_names"] = [b"layer/w:0"]
            group.create_group("layer").create_dataset("w:0", data=factor * values)
    with h5py.File(folder / "crash.h5", "w") as f:
        f.attrs["layer_names"] = ["layer"]
        group = f.create_group("layer")
        group.attrs["weight_names"] = ["layer/w:0"]
        group.create_group("layer").create_dataset("w:0", data=values, chunks=(2, 2), compression="gzip")
    damaged = bytearray((folder / "crash.h5").read_bytes())
    damaged[918] = 1  # HDF5 1.10.8 reads outside of its memory then
    (folder / "crash.h5").write_bytes(damaged)


def save_h5_shards(model, folder):
    """BERT's with the layout of Keras' files; the others' with HDF5's newer one, which takes a third of the space."""
    libver = "earliest" if model.config.model_type == "bert" else ("v108", "v108")
    weights = dict(tensorflow_weights(model))
    files = [f"tf_model-0000{i}-of-00002.h5" for i in (1, 2)]
    weight_map = {"tf_model/" + name: files[i % 2] for i, name in enumerate(weights)}
    for file in files:
        shard = {name: value for name, value in weights.items() if weight_map["tf_model/" + name] == file}
        with h5py.File(folder / file, "w", libver=libver) as f:
            f.attrs["layer_names"] = np.array([name.encode() for name in shard])
            for name, value in shard.items():
                f.create_dataset(name, data=value)
    index = dict(metadata=dict(total_size=0), weight_map=weight_map)
    (folder / "tf_model.h5.index.json").write_text(json.dumps(index, indent=2))


class Code:
    """An object whose pickle calls a function."""
    def __reduce__(self):
        return os.system, ("true",)


def save_fuzz_corpus(folder):
    """The files that a fuzzer changes, and some that must be refused."""
    folder.mkdir(parents=True, exist_ok=True)
    matrix = torch.arange(6.0).reshape(2, 3)
    state = OrderedDict(weight=matrix, transposed=matrix.t(), column=matrix[:, 1], half=torch.tensor([1.5]).half(),
                        brain=torch.tensor([1.5, 2]).bfloat16(), double=torch.tensor(2.0, dtype=torch.float64),
                        ids=torch.arange(3), flags=torch.tensor([True, False]), empty=torch.zeros(0, 4),
                        parameter=torch.nn.Parameter(torch.ones(1)))
    state._metadata = OrderedDict(module=OrderedDict(version=1))
    torch.save(state, folder / "ok_zip")
    with zipfile.ZipFile(folder / "ok_zip") as good, zipfile.ZipFile(folder / "bad_compressed", "w", zipfile.ZIP_DEFLATED) as bad:
        for member in good.infolist():
            bad.writestr(member.filename, good.read(member))
    torch.save(dict(weight=matrix, code=Code()), folder / "bad_function")
    torch.serialization.set_crc32_options(False)  # so that changes reach the pickle
    torch.save(state, folder / "ok_without_sums")
    torch.save(state, folder / "ok_protocol_4", pickle_protocol=4)
    torch.save(dict(weight=matrix), folder / "ok_small")
    torch.save([matrix], folder / "bad_list")
    torch.save(dict(epoch=1, state_dict={"module.weight": matrix}, optimizer_states=[{"lr": 0.1, 0: None}]), folder / "ok_checkpoint")
    torch.save(dict(epoch=1, net=dict(weight=matrix)), folder / "bad_checkpoint")
    torch.serialization.set_crc32_options(True)
    save_old(state, folder / "ok_old")
    save_old(state, folder / "ok_old_protocol_5", pickle_protocol=5)
    save_old(dict(weight=matrix, code=Code()), folder / "bad_function_old")
    torch.save(dict(weight=torch.tensor([1 + 2j, 3 - 4j]).conj().imag), folder / "bad_negative")
    appends = b"\x80\x02Nq\x010]" + 1000 * b"h\x01a" + b"."  # items that are appended one by one
    with zipfile.ZipFile(folder / "bad_many_appends", "w") as bad:
        bad.writestr(zipfile.ZipInfo("model/data.pkl"), appends)
    without_sums = (folder / "bad_many_appends").read_bytes().replace(zlib.crc32(appends).to_bytes(4, "little"), bytes(4))
    (folder / "bad_many_appends").write_bytes(without_sums)
    (folder / "bad_lfs").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def save_old(state, file, **options):
    torch.save(state, file, _use_new_zipfile_serialization=False, **options)


def main(families):
    save_rare(FOLDER.parent / "weights_rare")
    save_refused(FOLDER.parent / "weights_refused")
    save_fuzz_corpus(FOLDER.parent.parent / "fuzz" / "corpus" / "pytorch")
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
        save_old(state, sub("old") / "pytorch_model.bin")
        torch.save({n: value.to(torch.float16) for n, value in state.items()}, sub("f16") / "pytorch_model.bin")
        in_shards(state, sub("shards"), ".bin", torch.save)
        if family != "modernbert":  # TensorFlow never had it
            save_h5(model, sub("h5") / "tf_model.h5")
            save_h5_shards(model, sub("h5-shards"))
        if family == "bert":
            torch.save(strange(state), sub("strange") / "pytorch_model.bin")
            save_old(strange(state), sub("strange-old") / "pytorch_model.bin")
            for name, dtype in [("bf16", torch.bfloat16), ("f64", torch.float64)]:
                torch.save({n: value.to(dtype) for n, value in state.items()}, sub(name) / "pytorch_model.bin")
            in_shards(state, sub("shards-old"), ".bin", save_old)
            for protocol in (3, 4, 5):
                save_old(state, sub(f"old-protocol-{protocol}") / "pytorch_model.bin", pickle_protocol=protocol)
            save_h5_packed(model, sub("h5-packed") / "tf_model.h5")
            save_h5(model, sub("h5-einsum") / "tf_model.h5", einsum_weights)
            save_training_checkpoints(state, sub)
        with torch.no_grad():
            ids = torch.tensor(IDS)
            logits = model.double()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        save_file({"input_ids": ids, "logits": logits.double()}, folder / "expected.safetensors")


if __name__ == "__main__":
    main(sys.argv[1:] or FAMILIES)
