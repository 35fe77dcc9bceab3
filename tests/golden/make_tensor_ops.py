"""Writes tests/golden/tensor_ops.json: PyTorch's results and gradients of ops on shapes and indices.

Run from the repository's root with torch installed:
    python tests/golden/make_tensor_ops.py > tests/golden/tensor_ops.json
"""

import json
import random
import sys

import numpy
import torch

random.seed(7)
generator = torch.Generator().manual_seed(7)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def sizes(count, least=1, most=4):
    return [random.randint(least, most) for _ in range(count)]


def draw(shape, dtype, digits):
    """Numbers with few digits, so that the file is small; bfloat16 rounds them."""
    return (torch.rand(shape, generator=generator) * 4 - 2).round(decimals=digits).to(dtype)


def indices(shape, size):
    return torch.randint(0, size, shape, generator=generator)


def mask(shape):
    return torch.randint(0, 2, shape, generator=generator).bool()


def shortest(value):
    """The number with the fewest digits that float32 reads as this one."""
    return float(numpy.format_float_scientific(numpy.float32(value))) if isinstance(value, float) else int(value)


def stored(tensor):
    return {"shape": list(tensor.shape), "values": [shortest(v) for v in tensor.detach().reshape(-1).tolist()]}


cases = []


def case(op, function, shapes, arguments={}, others=(), dtypes=DTYPES, digits=3):
    """Runs function(*inputs, *others) in each dtype. The others are indices and masks."""
    for name, dtype in dtypes.items():
        inputs = [draw(shape, dtype, digits).requires_grad_(True) for shape in shapes]
        output = function(*inputs, *others)
        made = {"op": op, "dtype": name, "arguments": arguments, "inputs": [stored(x) for x in inputs],
                "others": [stored(x) for x in others], "output": stored(output)}
        if output.requires_grad:
            cotangent = draw(output.shape, dtype, digits)
            output.backward(cotangent)
            made["cotangent"] = stored(cotangent)["values"]
            made["gradients"] = [stored(x.grad)["values"] for x in inputs]
        cases.append(made)


def with_size(shape, dim, size):
    return shape[:dim] + [size] + shape[dim + 1:]


def smaller(shape, dim, size):
    """A shape that is nowhere longer, but for `dim`."""
    return with_size([random.randint(1, n) for n in shape], dim, size)


for rank in (2, 3, 4):
    shape = sizes(rank)
    dims = random.sample(range(rank), 2)
    case("transpose", lambda x: x.transpose(*dims), [shape], {"dims": dims})
    order = random.sample(range(rank), rank)
    case("permute", lambda x: x.permute(order), [shape], {"dims": order})
    dim = random.randrange(rank)
    long = with_size(shape, dim, random.randint(5, 9))
    begin, end, step = random.randint(0, 2), random.randint(3, 5), random.randint(1, 3)
    part = tuple([slice(None)] * dim + [slice(begin, end, step)])
    case("slice", lambda x: x[part], [long], {"dim": dim, "begin": begin, "end": end, "step": step})
    shapes = [with_size(shape, dim, n) for n in sizes(3)]
    case("concat", lambda *x: torch.cat(x, dim), shapes, {"dim": dim})
    case("stack", lambda *x: torch.stack(x, dim), [shape] * 3, {"dim": dim})
    case("split", lambda x: torch.cat(x.split(2, dim)[::-1], dim), [long], {"dim": dim, "size": 2})
    whole = sizes(rank)
    narrow = [n if random.random() < 0.5 else 1 for n in whole][random.randint(0, 1):]
    case("expand", lambda x: x.expand(whole), [narrow], {"shape": whole})
    case("where", lambda a, b, c: torch.where(c, a, b), [narrow, whole], {}, [mask(whole)])
    case("masked_fill", lambda x, m: x.masked_fill(m, -1.5), [whole], {"value": -1.5}, [mask(narrow)])
    n = long[dim]
    case("gather", lambda x, i: x.gather(dim, i), [long], {"dim": dim}, [indices(smaller(long, dim, 6), n)])
    case("gather", lambda x, i: x.gather(dim, i), [long], {"dim": dim}, [indices(with_size(long, dim, 7), n)])
    case("index_select", lambda x, i: x.index_select(dim, i), [long], {"dim": dim}, [indices([6], n)])
    same = with_size(long, dim, 8)
    case("scatter_add", lambda x, s, i: x.scatter_add(dim, i, s), [long, same], {"dim": dim}, [indices(same, n)])
    less = smaller(long, dim, 5)
    case("scatter_add", lambda x, s, i: x.scatter_add(dim, i, s), [long, less], {"dim": dim}, [indices(less, n)])
    case("one_hot", lambda i: torch.nn.functional.one_hot(i, 5), [], {"num_classes": 5}, [indices(shape, 5)],
         dtypes={"int64": torch.int64})
    for op in ("eq", "ne", "lt", "le", "gt", "ge"):
        case(op, getattr(torch, op), [narrow, whole], digits=0)

json.dump({"torch": torch.__version__, "cases": cases}, sys.stdout, separators=(",", ":"))
print()
