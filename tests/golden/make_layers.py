"""Writes nn/modules/testdata/modules_golden.json: layers and losses of PyTorch on random shapes, with their gradients.

Inputs are numbers that bfloat16 holds, so that the same cases serve float32 and bfloat16. PyTorch computes in float64.
Run from the repository's root with torch installed:
    python tests/golden/make_layers.py > nn/modules/testdata/modules_golden.json
"""

import json
import sys

import torch
from torch.nn import functional

generator = torch.Generator().manual_seed(33)


def size(low, high):
    return int(torch.randint(low, high + 1, (), generator=generator))


def draw(*shape, low=-2.0, high=2.0):
    values = torch.rand(shape, generator=generator) * (high - low) + low
    return values.bfloat16().double()


def stored(tensor):
    return {"shape": list(tensor.shape), "values": [float(f"{float(x):.7g}") for x in tensor.detach().reshape(-1)]}


def case(op, function, inputs, constants=None, options=None, module=None, counted=None):
    """Returns the result of function(*inputs, *constants) and the gradients of inputs and parameters.

    counted: 1 where an element of the result counts, for layers whose other elements mean nothing.
    """
    inputs = {key: value.requires_grad_(True) for key, value in inputs.items()}
    output = function(*inputs.values(), *(constants or {}).values())
    grad_output = draw(*output.shape, low=-1.0, high=1.0)
    if counted is not None:
        grad_output = grad_output * counted
        output = output * counted
    output.backward(grad_output)
    result = {"op": op, "options": options or {}, "inputs": {key: stored(value) for key, value in inputs.items()},
              "constants": {key: stored(value) for key, value in (constants or {}).items()},
              "grad_output": stored(grad_output), "output": stored(output),
              "grads": {key: stored(value.grad) for key, value in inputs.items()}}
    if module is not None:
        result["parameters"] = {key: stored(value) for key, value in module.named_parameters()}
        result["parameter_grads"] = {key: stored(value.grad) for key, value in module.named_parameters()}
    return result


def losses():
    for reduction in ["mean", "sum", "none"]:
        how = {"reduction": reduction}
        shape = (size(2, 5), size(2, 7))
        rows, classes = shape
        pair = lambda **bounds: {"input": draw(*shape, **bounds), "target": draw(*shape, **bounds)}
        yield case("l1_loss", lambda x, t: functional.l1_loss(x, t, **how), pair(), options=how)
        yield case("mse_loss", lambda x, t: functional.mse_loss(x, t, **how), pair(), options=how)
        for beta in [1.0, 0.25, 0.0]:
            yield case("smooth_l1_loss", lambda x, t: functional.smooth_l1_loss(x, t, beta=beta, **how), pair(),
                       options=how | {"beta": beta})
        target = draw(*shape, low=0.0, high=1.0)
        target[0, 0], target[1, 1] = 0.0, 1.0
        probabilities = draw(*shape, low=0.01, high=0.99)
        yield case("bce_loss", lambda x, t: functional.binary_cross_entropy(x, t, **how), {"input": probabilities},
                   {"target": target}, how)
        extreme = draw(*shape, low=-4.0, high=4.0)
        extreme[0, 0], extreme[0, 1] = 100.0, -100.0
        yield case("bce_with_logits_loss", lambda x, t: functional.binary_cross_entropy_with_logits(x, t, **how),
                   {"input": extreme}, {"target": target}, how)
        weight, pos_weight = draw(*shape, low=0.1, high=2.0), draw(classes, low=0.1, high=3.0)
        yield case("bce_with_logits_loss",
                   lambda x, t, w, p: functional.binary_cross_entropy_with_logits(x, t, weight=w, pos_weight=p, **how),
                   {"input": draw(*shape)}, {"target": target, "weight": weight, "pos_weight": pos_weight}, how)
        for log_target in [False, True]:
            bounds = {"low": -3.0, "high": -0.1} if log_target else {"low": 0.0, "high": 1.0}
            for kind in [reduction] + (["batchmean"] if reduction == "mean" else []):
                wanted = {"reduction": kind, "log_target": log_target}
                goal = draw(*shape, **bounds)
                if not log_target:
                    goal[0, 0] = 0.0
                # A target of 0 has no gradient in PyTorch that could be compared.
                if log_target:
                    yield case("kl_div_loss", lambda x, t: functional.kl_div(x, t, **wanted),
                               {"input": draw(*shape, low=-3.0, high=-0.1), "target": goal}, {}, wanted)
                else:
                    yield case("kl_div_loss", lambda x, t: functional.kl_div(x, t, **wanted),
                               {"input": draw(*shape, low=-3.0, high=-0.1)}, {"target": goal}, wanted)
        labels = torch.randint(0, classes, (rows,), generator=generator)
        labels[1] = -100
        of_class = draw(classes, low=0.1, high=2.0)
        yield case("nll_loss", lambda x, t: functional.nll_loss(x, t, **how),
                   {"input": draw(*shape, low=-3.0, high=-0.1)}, {"target": labels}, how)
        yield case("nll_loss", lambda x, t, w: functional.nll_loss(x, t, w, **how),
                   {"input": draw(*shape, low=-3.0, high=-0.1)}, {"target": labels, "weight": of_class}, how)
        for smoothing in [0.0, 0.2]:
            wanted = how | {"label_smoothing": smoothing}
            yield case("cross_entropy", lambda x, t: functional.cross_entropy(x, t, **wanted), {"input": draw(*shape)},
                       {"target": labels}, wanted)
            yield case("cross_entropy", lambda x, t, w: functional.cross_entropy(x, t, w, **wanted),
                       {"input": draw(*shape)}, {"target": labels, "weight": of_class}, wanted)
        wanted = how | {"ignore_index": 1}
        labels = torch.randint(0, classes, (rows,), generator=generator)
        labels[0] = 0
        yield case("cross_entropy", lambda x, t: functional.cross_entropy(x, t, **wanted), {"input": draw(*shape)},
                   {"target": labels}, wanted)
        signs = torch.randint(0, 2, (rows,), generator=generator) * 2 - 1
        for margin in [0.0, 0.3]:
            yield case("cosine_embedding_loss",
                       lambda a, b, y: functional.cosine_embedding_loss(a, b, y, margin=margin, **how),
                       {"a": draw(*shape), "b": draw(*shape)}, {"y": signs}, how | {"margin": margin})
        for p, swap, margin in [(2.0, False, 1.0), (1.0, True, 2.0), (2.0, True, 0.5)]:
            wanted = {"margin": margin, "p": p, "swap": swap}
            yield case("triplet_margin_loss",
                       lambda a, b, c: functional.triplet_margin_loss(a, b, c, **wanted, **how),
                       {"anchor": draw(*shape), "positive": draw(*shape), "negative": draw(*shape)}, {}, how | wanted)
    yield case("cosine_similarity", functional.cosine_similarity, {"a": draw(3, 5), "b": draw(3, 5)})


def activations():
    for op, module in [("ReLU", torch.nn.ReLU()), ("GELU", torch.nn.GELU()), ("GELUTanh", torch.nn.GELU("tanh")),
                       ("Tanh", torch.nn.Tanh()), ("SiLU", torch.nn.SiLU()), ("Sigmoid", torch.nn.Sigmoid()),
                       ("Mish", torch.nn.Mish()), ("Identity", torch.nn.Identity())]:
        yield case(op, module, {"x": draw(size(1, 4), size(1, 9))})
    yield case("Softmax", torch.nn.Softmax(-1), {"x": draw(size(1, 4), size(2, 9))})
    yield case("LogSoftmax", torch.nn.LogSoftmax(-1), {"x": draw(size(1, 4), size(2, 9))})
    yield case("Flatten", torch.nn.Flatten(), {"x": draw(2, 3, 4)}, options={"start": 1, "end": -1})
    yield case("Flatten", torch.nn.Flatten(0, -2), {"x": draw(2, 3, 4)}, options={"start": 0, "end": -2})


def with_drawn_parameters(module):
    module = module.double()
    for name, parameter in module.named_parameters():
        drawn = draw(*parameter.shape, low=-0.7, high=0.7)
        parameter.data = drawn + 1 if name.endswith("norm.weight") or "norm" in name and name.endswith("weight") else drawn
    return module


def layers():
    rows, width, between = size(2, 5), size(3, 8), size(3, 8)
    module = with_drawn_parameters(torch.nn.RMSNorm(width, eps=1e-5))
    yield case("RMSNorm", module, {"x": draw(rows, width)}, module=module)
    module = with_drawn_parameters(torch.nn.Sequential(
        torch.nn.Linear(width, between), torch.nn.GELU(), torch.nn.LayerNorm(between), torch.nn.Linear(between, 2)))
    yield case("Sequential", module, {"x": draw(rows, width)}, options={"in": width, "between": between}, module=module)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 1, 0, 1, 0]])
    counted = mask[:, :, None].double()
    for bias in [True, False]:
        module = with_drawn_parameters(torch.nn.MultiheadAttention(6, 2, batch_first=True, bias=bias))
        attend = lambda x, m: module(x, x, x, key_padding_mask=m == 0, need_weights=False)[0]
        yield case("MultiheadAttention", attend, {"x": draw(3, 5, 6)}, {"mask": mask}, {"bias": bias}, module, counted)
    for norm_first, activation, final_norm in [(False, "relu", False), (True, "gelu", True)]:
        layer = torch.nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, activation=activation, batch_first=True,
                                                 norm_first=norm_first)
        module = torch.nn.TransformerEncoder(layer, 2, torch.nn.LayerNorm(4) if final_norm else None,
                                             enable_nested_tensor=False)
        module = with_drawn_parameters(module)
        encode = lambda x, m: module(x, src_key_padding_mask=m == 0)
        yield case("TransformerEncoder", encode, {"x": draw(3, 5, 4)}, {"mask": mask},
                   {"norm_first": norm_first, "activation": activation, "final_norm": final_norm}, module, counted)
    module = with_drawn_parameters(torch.nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True))
    yield case("TransformerEncoder", module, {"x": draw(2, 3, 4)}, {},
               {"norm_first": False, "activation": "relu", "final_norm": False, "layer": True}, module)


json.dump({"torch": torch.__version__, "cases": [*losses(), *activations(), *layers()]}, sys.stdout, separators=(",", ":"))
print()
