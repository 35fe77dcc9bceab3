#!/usr/bin/env python3
"""Makes the golden model cases beside this file: tiny random classifiers and Transformers' results with them.

  python3 tests/golden/make_models.py [CASE ...]          # needs torch, transformers, safetensors

A case is a folder. config.json and model.safetensors are as save_pretrained writes them. golden.safetensors holds inputs
and expected values, computed in float64; see tests/golden_models_test.cc for the keys. meta.json holds the names of
parameters whose exact gradient is 0. All dropout rates are 0. Parameters with "bias" in their names and those of norms don't decay. In
bert-padding the masked columns lie between the others and hold tokens. It also has a batch "left." that is padded on the
left, with its last hidden states. The values were made with torch 2.15 and transformers 5.23 or 5.24.
"""
import contextlib
import copy
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForSequenceClassification, get_scheduler

from relative_keys import use_relative_keys

# Overrides of the config of a "model_type", by default that of BERT. A case's "seed" is by default its place here. The
# longest text has "tokens" tokens, by default POSITIONS. "labels" may be "soft", weights of the classes, or "negative",
# classes of which some are negative; both for models without a problem_type. "noise", by default 0.2, moves the weights.
# With "padding_in_texts", texts hold padding tokens that attention reads, as a text with the characters "<pad>" does.
CASES = {
    "bert-classes": dict(num_labels=4, hidden_act="gelu", layer_norm_eps=1e-12),
    "bert-score": dict(num_labels=1, hidden_act="gelu_new", layer_norm_eps=1e-3),
    "bert-tags": dict(num_labels=3, hidden_act="relu", problem_type="multi_label_classification"),
    "bert-padding": dict(num_labels=3, hidden_act="gelu", layer_norm_eps=1e-3),
    # Heads of 32 columns, which have kernels of their own in bfloat16.
    "bert-heads": dict(num_labels=2, hidden_act="gelu", hidden_size=64, num_attention_heads=2),
    # One token type, and positions from row pad_token_id + 1 on.
    "data2vec-text": dict(model_type="data2vec-text", num_labels=3, layer_norm_eps=1e-5, type_vocab_size=1,
                          max_position_embeddings=18),
    # A table of task types, of which row 0 alone is used.
    "ernie": dict(model_type="ernie", seed=21, num_labels=3, hidden_act="quick_gelu", use_task_id=True, hidden_size=36,
                  intermediate_size=19, type_vocab_size=4, layer_norm_eps=1e-5),
    # Embeddings narrower than the layers.
    "rembert": dict(model_type="rembert", seed=22, num_labels=3, hidden_act="mish", hidden_size=36, input_embedding_size=20,
                    intermediate_size=23, classifier_dropout_prob=0.0),
    "roberta-prelayernorm": dict(model_type="roberta-prelayernorm", seed=5, max_position_embeddings=18, num_labels=3,
                                 hidden_act="gelu", hidden_size=36, intermediate_size=50, layer_norm_eps=1e-5),
    "xlm-roberta-xl": dict(model_type="xlm-roberta-xl", seed=6, max_position_embeddings=18, num_labels=3,
                           hidden_act="gelu_new", hidden_size=36, intermediate_size=50, layer_norm_eps=1e-5),
    "megatron-bert": dict(model_type="megatron-bert", seed=7, num_labels=4, hidden_act="gelu", hidden_size=36,
                          intermediate_size=50, layer_norm_eps=1e-3),
    # Distances up to 100, which reach every bucket.
    "mpnet": dict(model_type="mpnet", seed=30, tokens=101, max_position_embeddings=103, num_labels=3, hidden_act="gelu",
                  hidden_size=36, intermediate_size=50, layer_norm_eps=1e-5),
    # More buckets than are used.
    "mpnet-short": dict(model_type="mpnet", seed=31, tokens=9, max_position_embeddings=11, num_labels=2, hidden_act="relu",
                        hidden_size=21, intermediate_size=17, relative_attention_num_buckets=40),
    "bert-relative-key": dict(seed=32, position_embedding_type="relative_key", num_labels=3, hidden_act="gelu",
                              hidden_size=36, intermediate_size=50),
    "bert-relative-key-query": dict(seed=33, position_embedding_type="relative_key_query", num_labels=3, tokens=37,
                                    max_position_embeddings=40, hidden_size=21, intermediate_size=17),
    "roberta-relative-key-query": dict(model_type="roberta", seed=34, position_embedding_type="relative_key_query",
                                       type_vocab_size=1, max_position_embeddings=18, num_labels=2),
    "megatron-bert-relative-key-query": dict(model_type="megatron-bert", seed=35, num_labels=4,
                                             position_embedding_type="relative_key_query", hidden_size=36,
                                             intermediate_size=50),
    # One table of distances for both layers.
    "albert-relative-key": dict(model_type="albert", seed=36, position_embedding_type="relative_key", num_labels=3,
                                embedding_size=10, classifier_dropout_prob=0.0),
    # Fewer buckets than distances, one projection for tokens and distances, and narrow embeddings.
    "deberta-v2-shared": dict(model_type="deberta-v2", seed=60, tokens=41, max_position_embeddings=41, num_labels=3,
                              hidden_size=36, intermediate_size=50, embedding_size=20, relative_attention=True,
                              pos_att_type=["p2c", "c2p"], position_buckets=10, share_att_key=True,
                              norm_rel_ebd="layer_norm", position_biased_input=False, layer_norm_eps=1e-5),
    # Each distance has a row, and the farthest ones share one. Positions and token types are added, too.
    "deberta-v2-own": dict(model_type="deberta-v2", seed=61, num_labels=4, hidden_size=21, intermediate_size=17,
                           relative_attention=True, pos_att_type="c2p", max_relative_positions=9, type_vocab_size=2,
                           layer_norm_eps=1e-5),
    "deberta-v2-absolute": dict(model_type="deberta-v2", seed=62, num_labels=2, pos_att_type="p2c"),
    "deberta": dict(model_type="deberta", seed=63, num_labels=3, hidden_size=36, intermediate_size=50,
                    relative_attention=True, pos_att_type="c2p|p2c", position_biased_input=False, layer_norm_eps=1e-5),
    "deberta-p2c": dict(model_type="deberta", seed=64, num_labels=1, hidden_size=21, intermediate_size=17,
                        relative_attention=True, pos_att_type="p2c", max_relative_positions=6, embedding_size=10),
    # Other groups in each layer.
    "squeezebert": dict(model_type="squeezebert", seed=80, num_labels=3, hidden_act="gelu", hidden_size=36,
                        embedding_size=36, intermediate_size=20, q_groups=2, k_groups=3, v_groups=6,
                        post_attention_groups=9, intermediate_groups=4, output_groups=2, layer_norm_eps=1e-3),
    "squeezebert-default": dict(model_type="squeezebert", seed=81, num_labels=2, hidden_act="gelu_new",
                                embedding_size=24),
    # A convolution in groups beside the first layer. Labels are weights of the classes.
    "deberta-v2-conv": dict(model_type="deberta-v2", seed=82, labels="soft", num_labels=4, hidden_size=36,
                            intermediate_size=50, relative_attention=True, pos_att_type="c2p|p2c", position_buckets=6,
                            share_att_key=True, norm_rel_ebd="layer_norm", position_biased_input=False,
                            layer_norm_eps=1e-5, conv_kernel_size=3, conv_groups=3, conv_act="gelu"),
    # A single layer, which computes first tokens alone. Some labels are negative.
    "deberta-v2-conv-only": dict(model_type="deberta-v2", seed=83, labels="negative", num_labels=3, hidden_size=21,
                                 num_hidden_layers=1, intermediate_size=17, conv_kernel_size=5, layer_norm_eps=1e-5),
    "deberta-soft": dict(model_type="deberta", seed=84, labels="soft", num_labels=3, hidden_size=21, intermediate_size=17,
                         relative_attention=True, pos_att_type="c2p", layer_norm_eps=1e-5),
    # Heads of 12 and 8 columns. The table of sines and cosines is far from its usual start, too.
    "roformer": dict(model_type="roformer", seed=80, num_labels=3, hidden_act="gelu", hidden_size=36, intermediate_size=50,
                     layer_norm_eps=1e-5),
    "roformer-values": dict(model_type="roformer", seed=81, tokens=37, max_position_embeddings=40, num_labels=4,
                            hidden_act="relu", embedding_size=10, rotary_value=True),
    # All biases, and kinds of layers in no regular order.
    "modernbert-biases": dict(model_type="modernbert", seed=82, tokens=29, max_position_embeddings=30, num_labels=3,
                              hidden_activation="silu", hidden_size=36, intermediate_size=22, num_hidden_layers=4,
                              pad_token_id=0, attention_bias=True, mlp_bias=True, norm_bias=True, classifier_bias=True,
                              classifier_activation="tanh", classifier_pooling="mean", local_attention=7,
                              layer_types=["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
                              rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=500.0, factor=2.0),
                                                   sliding_attention=dict(rope_type="default", rope_theta=30.0))),
    "nomic-bert": dict(model_type="nomic_bert", seed=83, tokens=23, max_position_embeddings=30, num_labels=3,
                       hidden_size=36, intermediate_size=50, layer_norm_eps=1e-5),
    # Heads that share keys and values, and are wider than usual; all biases.
    "eurobert": dict(model_type="eurobert", seed=84, num_labels=3, hidden_size=36, intermediate_size=50, pad_token_id=0,
                     num_attention_heads=6, num_key_value_heads=2, head_dim=10, attention_bias=True, mlp_bias=True,
                     rope_parameters=dict(rope_type="default", rope_theta=500.0)),
    "eurobert-mean": dict(model_type="eurobert", seed=85, tokens=21, max_position_embeddings=24, num_labels=2, pad_token_id=0,
                          hidden_act="gelu", classifier_pooling="mean"),
    "eurobert-first": dict(model_type="eurobert", seed=86, num_labels=4, pad_token_id=0, classifier_pooling="bos",
                           num_key_value_heads=1),
    # Half of the heads, and narrow embeddings. The rows of a batch are run alone.
    "convbert": dict(model_type="convbert", seed=85, num_labels=3, hidden_size=36, num_attention_heads=6,
                     intermediate_size=50, embedding_size=20, conv_kernel_size=5, layer_norm_eps=1e-5),
    # One head is left. The feed-forward block has groups, and there are more taps than tokens.
    "convbert-groups": dict(model_type="convbert", seed=86, num_labels=4, hidden_size=36, num_attention_heads=3,
                            head_ratio=4, num_groups=3, intermediate_size=27, embedding_size=36, conv_kernel_size=33,
                            hidden_act="gelu_new", layer_norm_eps=1e-3, pad_token_id=0),
    # Trigrams, bottlenecks, and scales and shifts in place of norms. The rows of a batch are run alone.
    "mobilebert": dict(model_type="mobilebert", seed=87, noise=0.1, num_labels=3, hidden_size=36, intra_bottleneck_size=21,
                       embedding_size=10, intermediate_size=17, num_feedforward_networks=3),
    # Attention reads the bottleneck. Nothing reads the bottleneck that queries and keys would share.
    "mobilebert-layer-norm": dict(model_type="mobilebert", seed=88, num_labels=4, hidden_size=36, intra_bottleneck_size=21,
                                  embedding_size=36, trigram_input=False, intermediate_size=17, hidden_act="gelu",
                                  normalization_type="layer_norm", use_bottleneck_attention=True,
                                  num_feedforward_networks=2, layer_norm_eps=1e-3),
    "mobilebert-plain": dict(model_type="mobilebert", seed=89, num_labels=1, hidden_size=24, embedding_size=10,
                             trigram_input=False, use_bottleneck=False, num_feedforward_networks=1,
                             classifier_activation=False),
    "mobilebert-unshared": dict(model_type="mobilebert", seed=90, noise=0.1, num_labels=2, hidden_size=24,
                                intra_bottleneck_size=24, embedding_size=8, hidden_act="gelu",
                                key_query_shared_bottleneck=False, num_feedforward_networks=2),
    # Talking heads, with both terms of distances.
    "deberta-talking": dict(model_type="deberta", seed=91, talking_head=True, num_labels=3, hidden_size=36,
                            intermediate_size=50, relative_attention=True, pos_att_type="c2p|p2c",
                            position_biased_input=False, layer_norm_eps=1e-5),
    # A table of distances that no term reads.
    "deberta-v2-no-terms": dict(model_type="deberta-v2", seed=92, num_labels=3, hidden_size=21, intermediate_size=17,
                                relative_attention=True, pos_att_type=[], position_buckets=6, share_att_key=True,
                                norm_rel_ebd="layer_norm", layer_norm_eps=1e-5),
    "deberta-no-terms": dict(model_type="deberta", seed=93, num_labels=2, hidden_size=21, intermediate_size=17,
                             relative_attention=True, layer_norm_eps=1e-5),
    "mpnet-padding": dict(model_type="mpnet", seed=37, max_position_embeddings=18, num_labels=3, hidden_act="gelu",
                          padding_in_texts=True),
    "roberta-padding": dict(model_type="roberta", seed=38, type_vocab_size=1, max_position_embeddings=18, num_labels=3,
                            padding_in_texts=True),
}
# Keys that are turned by their positions: a bias of keys then adds different numbers to a query's scores.
ROTARY = ["roformer", "modernbert", "nomic_bert", "eurobert"]
VOCAB, POSITIONS, STEPS = 61, 16, 10
ALONE = ("convbert", "mobilebert")  # families whose results for a text depend on its padding


def columns_of(length, tokens, padding, generator):
    """Returns the columns of a row's tokens: at its start, at its end, or anywhere from column 0 on."""
    if padding == "middle":
        return [0] + sorted((torch.randperm(tokens - 1, generator=generator)[:length - 1] + 1).tolist())
    return list(range(length) if padding == "right" else range(tokens - length, tokens))


def random_labels(config, rows, kind, generator):
    n = config.num_labels
    if kind == "soft":
        return torch.rand(rows, n, generator=generator)
    if config.problem_type == "multi_label_classification":
        return torch.randint(0, 2, (rows, n), generator=generator).float()
    if n == 1:
        return torch.rand(rows, generator=generator) * 5
    labels = torch.randint(0, n, (rows,), generator=generator)
    if kind == "negative":
        labels[1], labels[3] = -1, -100
    return labels


def random_batch(config, tokens, generator, padding="right", labels=None, padding_in_texts=False):
    lengths = [tokens, 2, 7, 1, min(11, tokens - 1)]
    ids = torch.full((len(lengths), tokens), config.pad_token_id)
    types, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    first = config.pad_token_id + 1  # RoBERTa's siblings count no position for a padding token
    if padding == "middle":  # tokens in masked columns don't count
        ids = torch.randint(first, VOCAB, ids.shape, generator=generator)
    has_types = hasattr(config, "type_vocab_size")
    for row, n in enumerate(lengths):
        columns = columns_of(n, tokens, padding, generator)
        ids[row, columns] = torch.randint(first, VOCAB, (n,), generator=generator)
        types[row, columns[n // 2:]] = row % max(1, config.type_vocab_size) if has_types else 0
        mask[row, columns] = 1
        if padding_in_texts:  # some of a long text, the last of a short one, all of the shortest
            ids[row, columns[3::4] if n > 8 else columns[-1:]] = config.pad_token_id
    labels = random_labels(config, len(lengths), labels, generator)
    batch = dict(input_ids=ids, token_type_ids=types, attention_mask=mask, labels=labels)
    if not has_types:
        del batch["token_type_ids"]
    return batch


class WithoutFloat32(TorchFunctionMode):
    """Computes in float64 what models with rotary positions always compute in float32: angles, norms and softmax."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def widened(value):
            return torch.float64 if value is torch.float32 else value
        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*[widened(a) for a in args], **{key: widened(value) for key, value in (kwargs or {}).items()})


def run_alone(model, batch, labels, **options):
    """Runs each row without its padding, which convolutions would read. Hidden states are padded with zeros."""
    outs = []
    for row, n in enumerate(batch["attention_mask"].sum(1).tolist()):
        inputs = {key: value[row:row + 1, :n] for key, value in batch.items() if key != "labels"}
        outs.append(model(**inputs, **options))
    logits = torch.cat([out.logits for out in outs])
    if labels.is_floating_point():
        loss = (logits.squeeze(-1) - labels).square().mean() if logits.shape[1] == 1 else \
            torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
    else:
        loss = torch.nn.functional.cross_entropy(logits, labels)
    tokens = batch["input_ids"].shape[1]
    states = zip(*[out.hidden_states for out in outs]) if outs[0].hidden_states else []
    pad = torch.nn.functional.pad
    return SimpleNamespace(logits=logits, loss=loss, hidden_states=[
        torch.cat([pad(x, (0, 0, 0, tokens - x.shape[1])) for x in layer]) for layer in states])


def run(model, batch, **options):
    labels = batch["labels"].double() if batch["labels"].is_floating_point() else batch["labels"]
    if model.config.model_type in ALONE:
        return run_alone(model, batch, labels, **options)
    with WithoutFloat32() if model.config.model_type in ROTARY else contextlib.nullcontext():
        out = model(**{**batch, "labels": labels}, **options)
    if out.loss.dtype == torch.float32:  # DeBERTa narrows the logits for it
        out.loss = torch.nn.functional.cross_entropy(out.logits[labels >= 0], labels[labels >= 0])
    return out


def by_file_names(model, values):
    """Returns the values of parameters under the names of a checkpoint, which are not always the parameters'."""
    if model.config.model_type != "nomic_bert":
        return values
    other = copy.deepcopy(model)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for name, parameter in other.named_parameters():
            parameter.copy_(values[name])
        other.float().save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def make(folder, seed, tokens, labels, noise, padding_in_texts, overrides):
    padding = "middle" if folder.name == "bert-padding" else "right"
    sizes = dict(vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
                 max_position_embeddings=POSITIONS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config = AutoConfig.for_model(**{"model_type": "bert", **sizes, **overrides})
    torch.manual_seed(1000 + seed)
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager")
    use_relative_keys(model)
    with torch.no_grad():
        for parameter in model.parameters():  # far from the usual start, so that every part of the model shows
            parameter.add_(torch.randn(parameter.shape, generator=generator) * noise)
    folder.mkdir(parents=True, exist_ok=True)
    model.float().save_pretrained(folder)
    model = model.double().train()
    for norm in model.modules():
        if type(norm).__name__ == "DebertaLayerNorm":  # it computes in float32
            norm.forward = lambda x, m=norm: torch.nn.functional.layer_norm(x, x.shape[-1:], m.weight, m.bias,
                                                                            m.variance_epsilon)

    golden = {}
    multiplies_keys = (getattr(config, "position_embedding_type", "") == "relative_key_query" or
                       config.model_type in ROTARY)
    batch = random_batch(config, tokens, generator, padding, labels, padding_in_texts)
    out = run(model, batch, output_hidden_states=True)
    out.loss.backward()
    golden.update(batch)
    golden.update(logits=out.logits.detach(), loss=out.loss.detach())
    for i, states in enumerate(out.hidden_states):
        golden[f"hidden_states.{i}"] = (states.detach() * batch["attention_mask"][..., None]).float()
    zero = []
    read = {name: parameter.grad.float() for name, parameter in model.named_parameters() if parameter.grad is not None}
    golden.update({"grad." + name: grad for name, grad in by_file_names(model, read).items()})
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        # Softmax ignores a number that is added to all scores of a query.
        if name.endswith(("attention.self.key.bias", "attention.key.bias", "attn.k.bias")) and not multiplies_keys:
            zero.append(name)
        if name.endswith(("key_proj.bias", "pos_key_proj.bias")) and parameter.grad.abs().max() < 1e-12:
            zero.append(name)
    model.zero_grad()
    if padding == "middle":
        left = random_batch(config, tokens, generator, "left")
        states = run(model, left, output_hidden_states=True).hidden_states[-1]
        golden.update({"left." + key: value for key, value in left.items() if key != "labels"})
        golden["left.last_hidden_state"] = states.detach().float()

    names = ("LayerNorm", "RMSNorm", "NoNorm")
    norms = {id(p) for m in model.modules() if any(name in type(m).__name__ for name in names)
             for p in m.parameters(recurse=False)}
    groups = [[], []]  # parameters that decay, and biases and the parameters of norms
    for name, parameter in model.named_parameters():
        groups["bias" in name or id(parameter) in norms].append(parameter)
    optimizer = torch.optim.AdamW([dict(params=groups[0], weight_decay=0.01), dict(params=groups[1], weight_decay=0.0)],
                                  lr=1e-3)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=2, num_training_steps=STEPS)
    batches, losses, grad_norms, rates = [], [], [], []
    for _ in range(STEPS):
        batches.append(random_batch(config, tokens, generator, padding, labels, padding_in_texts))
        loss = run(model, batches[-1]).loss
        loss.backward()
        losses.append(loss.detach())
        grad_norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    for key in batches[0]:
        golden["train." + key] = torch.stack([b[key] for b in batches])
    golden["train.loss"], golden["train.grad_norm"] = torch.stack(losses), torch.stack(grad_norms)
    golden["train.lr"] = torch.tensor(rates, dtype=torch.float64)
    final = {name: parameter.detach().float() for name, parameter in model.named_parameters()}
    golden.update({"train.final." + name: value for name, value in by_file_names(model, final).items()})
    save_file({k: v.detach().contiguous() for k, v in golden.items()}, folder / "golden.safetensors")
    (folder / "meta.json").write_text(json.dumps({"gradients": {"zero": zero}}, indent=1) + "\n")


if __name__ == "__main__":
    for place, (name, overrides) in enumerate(CASES.items()):
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            overrides = dict(overrides)
            make(Path(__file__).parent / "models" / name, overrides.pop("seed", place),
                 overrides.pop("tokens", POSITIONS), overrides.pop("labels", None), overrides.pop("noise", 0.2),
                 overrides.pop("padding_in_texts", False), overrides)
