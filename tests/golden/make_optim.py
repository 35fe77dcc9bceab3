"""Writes optim/testdata/optim_golden.json: the results of PyTorch's optimizers and Transformers' schedules.

Run from the repository's root with torch and transformers installed:
    python tests/golden/make_optim.py > optim/testdata/optim_golden.json
"""

import json
import sys

import torch
import transformers
from transformers.optimization import get_scheduler

STEPS = 6


def numbers(tensor):
    return [float(x) for x in tensor.detach().reshape(-1)]


def optimizer_case(name, options, lrs=None, clip=None, no_decay_bias=False):
    """Returns a case of two parameters, [3, 5] and [5], over a few steps. Gradients change sign and size."""
    generator = torch.Generator().manual_seed(len(name) + 1)
    weight = torch.nn.Parameter(torch.randn(3, 5, generator=generator))
    bias = torch.nn.Parameter(torch.randn(5, generator=generator))
    case = {"optimizer": name, "options": options, "weight": numbers(weight), "bias": numbers(bias),
            "no_decay_bias": no_decay_bias, "clip": clip, "steps": []}
    groups = [weight, bias]
    if no_decay_bias:
        groups = [{"params": [weight]}, {"params": [bias], "weight_decay": 0.0}]
    optimizer = getattr(torch.optim, name)(groups, **options)
    for step in range(STEPS):
        if lrs is not None:
            for group in optimizer.param_groups:
                group["lr"] = lrs[step]
        lr = optimizer.param_groups[0]["lr"]
        weight.grad = torch.randn(3, 5, generator=generator) * 10.0 ** (step - 3)
        bias.grad = torch.randn(5, generator=generator) * 10.0 ** (step - 3)
        row = {"lr": lr, "weight_grad": numbers(weight.grad), "bias_grad": numbers(bias.grad)}
        if clip is not None:
            row["norm"] = float(torch.nn.utils.clip_grad_norm_([weight, bias], clip))
            row["clipped"] = numbers(weight.grad)
        optimizer.step()
        row["weight"] = numbers(weight)
        row["bias"] = numbers(bias)
        case["steps"].append(row)
    return case


def schedule_case(name, lr, warmup, total, kwargs):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=total,
                              scheduler_specific_kwargs=kwargs or None)
    rates = []
    for _ in range(total + 4):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return {"name": name, "lr": lr, "num_warmup_steps": warmup, "num_training_steps": total,
            "options": kwargs, "rates": rates}


def plateau_case(lr, kwargs, metrics):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = get_scheduler("reduce_lr_on_plateau", optimizer, scheduler_specific_kwargs=kwargs or None)
    rates = []
    for metric in metrics:
        optimizer.step()
        scheduler.step(metric)
        rates.append(optimizer.param_groups[0]["lr"])
    return {"lr": lr, "options": kwargs, "metrics": metrics, "rates": rates}


def main():
    optimizers = [
        optimizer_case("AdamW", {"lr": 1e-2}),
        optimizer_case("AdamW", {"lr": 3e-5, "weight_decay": 0.0, "eps": 1e-6}),
        optimizer_case("AdamW", {"lr": 0.1, "betas": [0.8, 0.95], "weight_decay": 0.3}, no_decay_bias=True),
        optimizer_case("AdamW", {"lr": 0.1}, lrs=[0.0, 0.1, 0.2, 0.1, 0.05, 0.0], clip=0.5),
        optimizer_case("SGD", {"lr": 0.1}),
        optimizer_case("SGD", {"lr": 0.1, "weight_decay": 0.2}, no_decay_bias=True),
        optimizer_case("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, clip=1.0),
        optimizer_case("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.4}),
        optimizer_case("SGD", {"lr": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.1}),
    ]
    schedules = []
    plain = ["linear", "cosine", "cosine_with_restarts", "polynomial", "constant",
             "constant_with_warmup", "inverse_sqrt"]
    for name in plain:
        for warmup, total in [(0, 10), (4, 20), (10, 10)]:
            if not (name == "polynomial" and warmup == total):  # Transformers divides by zero there
                schedules.append(schedule_case(name, 5e-5, warmup, total, {}))
    schedules += [
        schedule_case("cosine", 1e-3, 3, 17, {"num_cycles": 1.25}),
        schedule_case("cosine_with_restarts", 1e-3, 3, 17, {"num_cycles": 3}),
        schedule_case("polynomial", 1e-3, 3, 17, {"power": 2.5, "lr_end": 1e-5}),
        schedule_case("inverse_sqrt", 1e-3, 3, 17, {"timescale": 7}),
        schedule_case("cosine_with_min_lr", 1e-3, 3, 17, {"min_lr": 1e-4}),
        schedule_case("cosine_with_min_lr", 1e-3, 3, 17, {"min_lr_rate": 0.25, "num_cycles": 1.5}),
        schedule_case("warmup_stable_decay", 1e-3, 3, 17, {"num_decay_steps": 6}),
    ]
    for warmup_type in ["linear", "cosine", "1-sqrt"]:
        for decay_type in ["linear", "cosine", "1-sqrt"]:
            schedules.append(schedule_case(
                "warmup_stable_decay", 1e-3, 5, 20,
                {"num_decay_steps": 7, "num_stable_steps": 4, "min_lr_ratio": 0.1,
                 "warmup_type": warmup_type, "decay_type": decay_type}))
    schedules.append(schedule_case("warmup_stable_decay", 1e-3, 2, 12,
                                   {"num_decay_steps": 5, "num_cycles": 1.5}))
    falling = [1.0, 0.9, 0.9, 0.95, 0.91, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6]
    plateaus = [
        plateau_case(0.1, {}, [1.0] * 14),
        plateau_case(0.1, {"patience": 1, "factor": 0.5}, falling),
        plateau_case(0.1, {"patience": 1, "cooldown": 2, "min_lr": 0.02}, falling),
        plateau_case(0.1, {"mode": "max", "patience": 2, "threshold": 0.05}, falling[::-1]),
        plateau_case(1e-8, {"patience": 0}, falling),  # changes below PyTorch's eps are not made
    ]
    json.dump({"torch": torch.__version__, "transformers": transformers.__version__,
               "optimizers": optimizers, "schedules": schedules, "plateaus": plateaus}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
