"""Writes tests/golden/math_ops.json: mathematical ops of PyTorch on random shapes, with their gradients.

Run from the repository's root with torch installed:
    python tests/golden/make_math_ops.py > tests/golden/math_ops.json

A case has an op's name and options, inputs, the results of all outputs, the gradient of the first output that the
backward pass starts from, and the gradients of the inputs. float32 cases are computed in float64 from numbers that
float32 holds. bfloat16 cases are computed in bfloat16 where PyTorch can, from numbers that bfloat16 holds.
"""

import json

import torch
from torch.nn import functional

generator = torch.Generator().manual_seed(33)
cases = []


def draw(shape, low=-2.0, high=2.0):
    return (low + (high - low) * torch.rand(shape, generator=generator)).float()


def ties(shape):
    """Few different numbers, so that many are equal."""
    return torch.randint(-2, 3, shape, generator=generator).float()


def with_nan(tensor):
    tensor = tensor.clone()
    tensor.view(-1)[tensor.numel() // 3] = float("nan")
    tensor.view(-1)[2 * tensor.numel() // 3] = float("nan")
    return tensor


def numbers(tensor):
    """JSON has no NaN and no infinities: they are text."""
    def one(x):
        return int(x) if not tensor.is_floating_point() else float("%.9g" % x) if abs(x) < float("inf") else str(x)
    return [one(x) for x in tensor.detach().reshape(-1).tolist()]


def add(op, function, inputs, dtypes=("float32", "bfloat16"), **options):
    for dtype in dtypes:
        narrow = dtype == "bfloat16"
        stored = [(x.bfloat16().float() if narrow else x) for x in inputs]
        leaves = [(x.bfloat16() if narrow else x.double()).clone().requires_grad_(True) for x in stored]
        outputs = function(*leaves)
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        case = {"op": op, "options": options, "dtype": dtype,
                "inputs": [{"shape": list(x.shape), "values": numbers(x)} for x in stored],
                "outputs": [{"shape": list(y.shape), "values": numbers(y)} for y in outputs]}
        if outputs[0].is_floating_point():
            cotangent = draw(outputs[0].shape)
            cotangent = cotangent.bfloat16().float() if narrow else cotangent
            outputs[0].backward(cotangent.to(outputs[0].dtype))
            case["cotangent"] = numbers(cotangent)
            case["gradients"] = [numbers(x.grad) for x in leaves]
        cases.append(case)


def random_shape(dims, most=4):
    return [int(torch.randint(1, most + 1, (), generator=generator)) for _ in range(dims)]


# Matrix products: random leading dimensions, some of which are broadcast.
for transpose_a in (False, True):
    for transpose_b in (False, True):
        for dims in (0, 1, 2):
            m, k, n = random_shape(3, 5)
            leading = random_shape(dims, 3)
            left = [1 if torch.rand((), generator=generator) < 0.3 else d for d in leading]
            right = [1 if torch.rand((), generator=generator) < 0.3 else d for d in leading]
            right = right[int(torch.randint(0, dims + 1, (), generator=generator)):]
            add("matmul",
                lambda a, b, ta=transpose_a, tb=transpose_b: torch.matmul(a.mT if ta else a, b.mT if tb else b),
                [draw(left + ([k, m] if transpose_a else [m, k])), draw(right + ([n, k] if transpose_b else [k, n]))],
                transpose_a=transpose_a, transpose_b=transpose_b)
plain = {"transpose_a": False, "transpose_b": False}
add("matmul", torch.matmul, [draw([3]), draw([3])], **plain)
add("matmul", torch.matmul, [draw([3]), draw([2, 3, 4])], **plain)
add("matmul", torch.matmul, [draw([2, 3, 4]), draw([4])], **plain)

# Reductions, of distinct numbers, of equal ones, and with NaN.
for values in (draw, ties, lambda shape: with_nan(draw(shape))):
    for dim in (0, 1, -1):
        shape = random_shape(3, 5)
        keepdim = dim == 1
        for op in ("max", "min"):
            add(op, lambda x, f=getattr(torch, op), d=dim, k=keepdim: tuple(f(x, d, k)), [values(shape)], dim=dim,
                keepdim=keepdim)
        for op in ("argmax", "argmin"):
            add(op, lambda x, f=getattr(torch, op), d=dim, k=keepdim: f(x, d, k), [values(shape)], dim=dim,
                keepdim=keepdim)
    for op in ("max", "min"):
        add(op + "_all", getattr(torch, op), [values(random_shape(2, 5))])
for values in (draw, ties):
    for dims in ([0], [1], [0, 2], [0, 1, 2]):
        for op in ("amax", "amin"):
            add(op, lambda x, f=getattr(torch, op), d=dims: f(x, d, False), [values(random_shape(3))], dims=dims,
                keepdim=False)
for dim, k, largest in ((-1, 3, True), (0, 2, True), (1, 2, False), (-1, 5, False), (0, 1, True)):
    shape = [2 + d for d in random_shape(2, 5)]
    shape[dim] = max(shape[dim], k)
    add("topk", lambda x, k=k, d=dim, l=largest: tuple(torch.topk(x, k, d, l)), [draw(shape)], ["float32"], k=k, dim=dim,
        largest=largest)
for dims, correction, keepdim in (([0], 1, False), ([-1], 0, True), ([0, 2], 1, False), ([1, 2], 2, True),
                                  ([0, 1, 2], 1, False)):
    add("variance", lambda x, d=dims, c=correction, k=keepdim: torch.var(x, d, correction=c, keepdim=k),
        [draw([2 + d for d in random_shape(3)])], dims=dims, correction=correction, keepdim=keepdim)

# Elementwise.
for low, high in ((-1.0, 0.5), (None, 0.5), (-1.0, None), (1.0, -1.0)):
    add("clamp", lambda x, l=low, h=high: torch.clamp(x, l, h), [torch.cat([draw([9]), ties([9])])],
        **{name: limit for name, limit in (("min", low), ("max", high)) if limit is not None})
for exponent in (2.0, 3.0, 0.5, -1.0, -0.5, 0.0, 1.0):
    add("pow_scalar", lambda x, e=exponent: torch.pow(x, e), [draw([7], 0.3, 2)], exponent=exponent)
add("pow_scalar", lambda x: torch.pow(x, 2.0), [ties([7])], exponent=2.0)
add("pow", torch.pow, [draw([3, 4], 0.3, 2), draw([4])])
add("pow", torch.pow, [torch.tensor([0.0, 0.0, 1.0, 2.0]), torch.tensor([2.0, 0.0, 0.0, 3.0])])
add("abs", torch.abs, [ties([9])])
add("neg", torch.neg, [draw([9])])
for op in ("maximum", "minimum"):
    for values in (draw, ties):
        add(op, getattr(torch, op), [values([3, 4]), values([4])])
add("div_scalar", lambda x: x / 3.0, [draw([7])], scalar=3.0)
add("scalar_div", lambda x: 3.0 / x, [draw([7], 0.5, 2)], scalar=3.0)

# Convolutions and pooling.
for b, c, length, o, taps, stride, padding, dilation, groups in (
        (1, 1, 5, 1, 1, 1, 0, 1, 1), (2, 3, 7, 4, 3, 1, 1, 1, 1), (3, 2, 9, 2, 4, 2, 3, 1, 1), (2, 4, 8, 6, 2, 1, 0, 3, 2),
        (2, 3, 6, 3, 3, 3, 2, 2, 3), (1, 2, 3, 3, 5, 1, 2, 1, 1)):
    # Weight and bias are float32 for bfloat16 x, too.
    for dtype in ("float32", "bfloat16"):
        x, w, bias = draw([b, c, length]), draw([o, c // groups, taps]), draw([o])
        if dtype == "bfloat16":
            x, w = x.bfloat16().float(), w.bfloat16().float()
        leaves = [t.double().clone().requires_grad_(True) for t in (x, w, bias)]
        y = functional.conv1d(*leaves, stride=stride, padding=padding, dilation=dilation, groups=groups)
        cotangent = draw(y.shape).bfloat16().float()
        y.backward(cotangent.double())
        cases.append({"op": "conv1d", "dtype": dtype,
                      "options": {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups},
                      "inputs": [{"shape": list(t.shape), "values": numbers(t)} for t in (x, w, bias)],
                      "outputs": [{"shape": list(y.shape), "values": numbers(y)}], "cotangent": numbers(cotangent),
                      "gradients": [numbers(t.grad) for t in leaves]})
for kernel, stride, padding, dilation in ((2, 2, 0, 1), (3, 1, 1, 1), (3, 2, 1, 2), (4, 3, 2, 1)):
    for values in (draw, ties):
        add("max_pool1d",
            lambda x, k=kernel, s=stride, p=padding, d=dilation: functional.max_pool1d(x, k, s, p, d),
            [values([2, 2, 9])], kernel_size=kernel, stride=stride, padding=padding, dilation=dilation)
    for count in (True, False):
        add("avg_pool1d",
            lambda x, k=kernel, s=stride, p=padding, c=count: functional.avg_pool1d(x, k, s, p, count_include_pad=c),
            [draw([2, 2, 9])], kernel_size=kernel, stride=stride, padding=padding, count_include_pad=count)

# Reductions by dimensions.
for dims, keepdim in (([0], False), ([1], True), ([-1], False), ([0, 2], False), ([0, 1], True), ([0, 1, 2], False)):
    for op in ("sum", "mean"):
        add(op, lambda x, f=getattr(torch, op), d=dims, k=keepdim: f(x, d, k), [draw(random_shape(3, 5))], dims=dims,
            keepdim=keepdim)
for dim in (0, 1, -1):
    for op in ("softmax", "log_softmax"):
        add(op, lambda x, f=getattr(torch, op), d=dim: f(x, d), [draw(random_shape(3, 5))], dim=dim)

# The other elementwise ops, and sums of everything.
for op in ("add", "sub", "mul", "div"):
    for left, right in (([3, 4], [3, 4]), ([3, 4], [4]), ([3, 1], [2, 1, 4]), ([2, 3], [])):
        add(op, getattr(torch, op), [draw(left), draw(right, 0.5, 2)])
for op in ("exp", "tanh", "sigmoid", "erf", "relu"):
    add(op, getattr(torch, op), [draw([11])])
for op in ("log", "sqrt"):
    add(op, getattr(torch, op), [draw([11], 0.1, 4)])
add("scale", lambda x: x * 0.3, [draw([9])], scalar=0.3)
add("add_scalar", lambda x: x + 0.3, [draw([9])], scalar=0.3)
for op in ("sum", "mean"):
    add(op + "_all", getattr(torch, op), [draw([3, 5])])

print('{"torch": %s,' % json.dumps(torch.__version__))
print(' "cases": [')
print(",\n".join("  " + json.dumps(case) for case in cases))
print("]}")
