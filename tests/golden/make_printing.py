"""Writes tests/golden/printing.json: arrays, and how NumPy 2.4 prints them.

Run from the repository's root with NumPy installed:
    python tests/golden/make_printing.py > tests/golden/printing.json
"""

import json
import warnings

import numpy

warnings.simplefilter("ignore")
random = numpy.random.default_rng(33)
cases = []


def add(array):
    array = numpy.asarray(array)
    values = [x if array.dtype.kind != "f" or abs(x) < numpy.inf else str(x) for x in array.reshape(-1).tolist()]
    cases.append({"dtype": array.dtype.name, "shape": list(array.shape), "values": values, "text": str(array)})


def add_ramp(array):
    """A large array that counts up: only its first number is stored."""
    cases.append({"dtype": array.dtype.name, "shape": list(array.shape), "ramp": float(array.reshape(-1)[0]),
                  "text": str(array)})


nan, inf = numpy.nan, numpy.inf
SMALL = [[1, 2.5, -0.125], [0.1, 0.2, 0.3], [1e-5, 1, 2], [1e8, 1], [99999999, 1], [1e-4, 0.05], [0.00011, 0.1],
         [1, 1000], [1, 1001], [0.001, 1.0001], [0, -0.0, 0], [nan, 1.5, -inf], [nan, nan], [inf, -inf], [inf, 12345.678],
         [nan, -1e-10], [1 / 3, 2 / 3, 1], [1e10, 1e-10], [123456.789, 0.001], [1e300, 1e-300], [5e-324, 1],
         [16777216, 16777217], [0.1 + 0.2], [-1, -10, -100], [3.14159265358979], [1e20], [1.5e-7, nan, inf],
         [0.5, 0.25, 0.125, 0.0625, 0.00390625], [1.00000001], [0.123456785, 1], [2.0**-9, 2.0**-10], [1e-7, 2e-7]]
for dtype in ("float32", "float64", "float16"):
    for values in SMALL:
        add(numpy.array(values).astype(dtype))
    for scalar in (0, -0.0, 1, 0.1, 1 / 3, 1e-5, 1e-4, 123456789, 1e15, 1e16, 1e17, nan, inf, -inf, 5e-5, -2.5):
        add(numpy.array(scalar).astype(dtype))
    for shape in ((3,), (2, 3), (4, 1), (1, 1, 1), (2, 2, 2), (2, 1, 3, 2), (12,), (30,), (3, 20), (0,), (2, 0), (2, 0, 3)):
        add(random.standard_normal(shape).astype(dtype))
        add((random.standard_normal(shape) * 1000).astype(dtype))
        add(numpy.exp(8 * random.standard_normal(shape)).astype(dtype))
        add(numpy.round(random.standard_normal(shape) * 4) / 4)
for dtype in ("int64", "int32", "uint8"):
    for values in ([1, 2, 3], [0], [[1, 20], [100, 3]], list(range(40)), 7, [], [[[1], [2]], [[30], [4]]]):
        add(numpy.array(values, dtype))
add(numpy.array([-1, 100, -1000]))
add(numpy.array([2**63 - 1, -(2**63)]))
add(numpy.array(-5, "int32"))
for values in (True, False, [True, False], [[True, True], [False, True]], [False] * 30):
    add(numpy.array(values))
for dtype in ("int64", "float32", "float64"):
    for shape in ((1000,), (1001,), (2000,), (40, 40), (2, 600), (600, 2), (20, 20, 20), (3, 2, 400), (1, 5000), (5000, 1)):
        if numpy.prod(shape) > 1000 or dtype == "int64":
            add_ramp((numpy.arange(numpy.prod(shape)) - 7).reshape(shape).astype(dtype))

print('{"numpy": %s,' % json.dumps(numpy.__version__))
print(' "cases": [')
print(",\n".join("  " + json.dumps(case) for case in cases))
print("]}")
