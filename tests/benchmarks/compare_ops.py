"""Times Lathe's general ops on the CPU beside PyTorch's, in turns, and prints a table in Markdown.

    bazel build //tests/benchmarks:tensor_ops
    python tests/benchmarks/compare_ops.py [--rounds 5] [--threads 2] [NAME...]

Each op runs for 0.03 s in Lathe, then in PyTorch, and so on. A time is the median of the rounds' least times. GB/s are
those that the op must move. `of a copy` is its share of what copying that tensor reaches in Lathe, in the same round.
"""

import argparse
import os
import statistics
import subprocess
import time

import torch
from torch.nn import functional

ROWS, COLUMNS = 832, 3072


def indices(shape, size):
    return torch.randint(0, size, shape)


def with_backward(x, f):
    dy = torch.rand_like(f(x))

    def run():
        leaf = x.detach().requires_grad_(True)
        torch.autograd.grad(f(leaf.view(leaf.shape)), leaf, dy)

    return run


def cases():
    x, y = torch.rand(ROWS, COLUMNS) * 2 - 1, torch.rand(ROWS, COLUMNS) * 2 - 1
    positive = x.abs() + 0.1
    row, column = torch.rand(COLUMNS), torch.rand(ROWS, 1)
    cube, heads = x.view(32, 26, COLUMNS), x.view(32, 26, 48, 64)
    middle, tall, narrow = torch.rand(32, 1, COLUMNS), x.view(39936, 64), x.view(319488, 8)
    row_numbers, column_numbers = indices((ROWS,), ROWS), indices((COLUMNS,), COLUMNS)
    one_column, numbers = indices((39936, 1), 64), indices((ROWS, COLUMNS), COLUMNS)
    down, classes = indices((ROWS, COLUMNS), ROWS), indices((39936,), 64)
    mask, row_mask, sequences = x < y, column < 0.5, x.view(312, 128, 64)
    narrow_column, eight = torch.rand(319488, 1), torch.rand(8)
    one, chosen = indices((1,), 64), indices((39936,), 39936)
    return {
        "clone": lambda: x.clone(),
        "expand_row": lambda: row.expand(ROWS, COLUMNS).contiguous(),
        "expand_column": lambda: column.expand(ROWS, COLUMNS).contiguous(),
        "expand_middle": lambda: middle.expand(32, 26, COLUMNS).contiguous(),
        "expand_narrow": lambda: narrow_column.expand(319488, 8).contiguous(),
        "sum_to_row": lambda: x.sum_to_size(COLUMNS),
        "sum_to_column": lambda: x.sum_to_size(ROWS, 1),
        "sum_to_middle": lambda: cube.sum_to_size(32, 1, COLUMNS),
        "sum_to_one": lambda: x.sum_to_size(1),
        "sum_to_narrow": lambda: narrow.sum_to_size(319488, 1),
        "sum_to_few": lambda: narrow.sum_to_size(8),
        "sum": lambda: x.sum(),
        "mean": lambda: x.mean(),
        "sum_last": lambda: x.sum(-1),
        "sum_last_backward": with_backward(x, lambda t: t.sum(-1)),
        "softmax": lambda: x.softmax(-1),
        "softmax_narrow": lambda: tall.softmax(-1),
        "log_softmax": lambda: x.log_softmax(-1),
        "log_softmax_narrow": lambda: narrow.log_softmax(-1),
        "softmax_backward": with_backward(x, lambda t: t.softmax(-1)),
        "log_softmax_backward": with_backward(x, lambda t: t.log_softmax(-1)),
        "variance_rows": lambda: x.var(1),
        "variance_columns": lambda: x.var(0),
        "variance_rows_backward": with_backward(x, lambda t: t.var(1)),
        "variance_columns_backward": with_backward(x, lambda t: t.var(0)),
        "max_rows": lambda: x.max(1),
        "max_columns": lambda: x.max(0),
        "max_narrow": lambda: narrow.max(1),
        "max_all": lambda: x.max(),
        "amax_middle": lambda: cube.amax(1),
        "argmax_rows": lambda: x.argmax(1),
        "max_rows_backward": with_backward(x, lambda t: t.max(1).values),
        "max_columns_backward": with_backward(x, lambda t: t.max(0).values),
        "amax_rows_backward": with_backward(x, lambda t: t.amax(1)),
        "topk_rows": lambda: x.topk(5),
        "topk_narrow": lambda: tall.topk(5),
        "topk_columns": lambda: x.topk(5, 0),
        "slice_columns": lambda: x[:, :COLUMNS // 2].contiguous(),
        "slice_one_column": lambda: tall[:, 5:6].contiguous(),
        "slice_step": lambda: x[:, ::2].contiguous(),
        "slice_columns_backward": with_backward(x, lambda t: t[:, :COLUMNS // 2].clone()),
        "split_columns": lambda: [t.contiguous() for t in x.split(768, 1)],
        "concat_rows": lambda: torch.cat([x, y], 0),
        "concat_columns": lambda: torch.cat([x, y], 1),
        "concat_narrow": lambda: torch.cat([narrow, narrow], 1),
        "stack_last": lambda: torch.stack([x, y], -1),
        "transpose": lambda: x.t().contiguous(),
        "permute_heads": lambda: heads.permute(0, 2, 1, 3).contiguous(),
        "permute_last": lambda: heads.permute(0, 2, 3, 1).contiguous(),
        "permute_reverse": lambda: heads.permute(3, 2, 1, 0).contiguous(),
        "index_select_rows": lambda: x.index_select(0, row_numbers),
        "index_select_columns": lambda: x.index_select(1, column_numbers),
        "index_select_one": lambda: tall.index_select(1, one),
        "index_select_rows_backward": with_backward(x, lambda t: t.index_select(0, row_numbers)),
        "index_select_columns_backward": with_backward(x, lambda t: t.index_select(1, column_numbers)),
        "gather_rows": lambda: x.gather(1, numbers),
        "gather_columns": lambda: x.gather(0, down),
        "gather_one_column": lambda: tall.gather(1, one_column),
        "gather_rows_backward": with_backward(x, lambda t: t.gather(1, numbers)),
        "scatter_add_rows": lambda: x.scatter_add(1, numbers, y),
        "scatter_add_columns": lambda: x.scatter_add(0, down, y),
        "gather_table_rows": lambda: functional.embedding(chosen, tall),
        "one_hot": lambda: functional.one_hot(classes, 64),
        "where": lambda: torch.where(mask, x, y),
        "where_scalar": lambda: x.masked_fill(mask, 0),
        "where_row_mask": lambda: x.masked_fill(row_mask, 0),
        "less": lambda: x < y,
        "equal_number": lambda: x == 0.5,
        "bool_to_float": lambda: mask.float(),
        "int64_to_float": lambda: numbers.float(),
        "float_to_double": lambda: x.double(),
        "add": lambda: x + y,
        "add_row": lambda: x + row,
        "add_column": lambda: x + column,
        "add_middle": lambda: cube + middle,
        "add_narrow": lambda: narrow + eight,
        "add_row_backward": with_backward(row, lambda t: x + t),
        "mul": lambda: x * y,
        "div": lambda: x / positive,
        "maximum": lambda: torch.maximum(x, y),
        "scale": lambda: x * 2,
        "abs": lambda: x.abs(),
        "neg": lambda: -x,
        "clamp": lambda: x.clamp(-0.5, 0.5),
        "clamp_backward": with_backward(x, lambda t: t.clamp(-0.5, 0.5)),
        "relu": lambda: x.relu(),
        "relu_backward": with_backward(x, torch.relu),
        "sqrt": lambda: positive.sqrt(),
        "exp": lambda: x.exp(),
        "log": lambda: positive.log(),
        "tanh": lambda: x.tanh(),
        "sigmoid": lambda: x.sigmoid(),
        "erf": lambda: x.erf(),
        "square": lambda: x**2,
        "cube": lambda: x**3,
        "pow_number": lambda: positive**1.7,
        "pow": lambda: positive**y,
        "arange": lambda: torch.arange(ROWS * COLUMNS),
        "zeros": lambda: torch.zeros(ROWS, COLUMNS),
        "full": lambda: torch.full((ROWS, COLUMNS), 2.0),
        "randn": lambda: torch.randn(ROWS, COLUMNS),
        "rand": lambda: torch.rand(ROWS, COLUMNS),
        "max_pool": lambda: functional.max_pool1d(sequences, 2),
        "max_pool_overlapping": lambda: functional.max_pool1d(sequences, 3, 1, 1),
        "avg_pool": lambda: functional.avg_pool1d(sequences, 2),
        "max_pool_backward": with_backward(sequences, lambda t: functional.max_pool1d(t, 2)),
        "avg_pool_backward": with_backward(sequences, lambda t: functional.avg_pool1d(t, 2)),
    }


def least_seconds(run):
    run()
    least, runs, start = 1e9, 0, time.perf_counter()
    while runs < 5 or time.perf_counter() - start < 0.03:
        begin = time.perf_counter()
        run()
        least = min(least, time.perf_counter() - begin)
        runs += 1
    return least


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="bazel-bin/tests/benchmarks/tensor_ops")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("names", nargs="*", help="begins of ops' names; all ops if there is none")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    lathe = subprocess.Popen([arguments.program, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             env=os.environ | {"OMP_NUM_THREADS": str(arguments.threads)})

    def ask(name):
        lathe.stdin.write(name + "\n")
        lathe.stdin.flush()
        return [float(word) for word in lathe.stdout.readline().split()]

    ours, theirs, copies, moved = {}, {}, {}, {}
    chosen = {name: run for name, run in cases().items()
              if not arguments.names or any(name.startswith(begin) for begin in arguments.names)}
    for _ in range(arguments.rounds):
        for name, run in chosen.items():
            seconds, moved[name] = ask(name)
            theirs.setdefault(name, []).append(least_seconds(run))
            ours.setdefault(name, []).append(seconds)
            copy_seconds, copied = ask("clone")
            copies.setdefault(name, []).append(copied / copy_seconds)
    print("| op | Lathe, us | PyTorch, us | PyTorch's time / Lathe's | Lathe, GB/s | of a copy |\n|---|---|---|---|---|---|")
    for name in chosen:
        seconds, peer = statistics.median(ours[name]), statistics.median(theirs[name])
        ratio = statistics.median(t / s for t, s in zip(theirs[name], ours[name]))
        share = statistics.median(moved[name] / s / copy for s, copy in zip(ours[name], copies[name]))
        print(f"| {name} | {seconds * 1e6:.0f} | {peer * 1e6:.0f} | {ratio:.2f} | "
              f"{moved[name] / seconds * 1e-9:.1f} | {share:.2f} |")
    lathe.stdin.close()
    lathe.wait()


if __name__ == "__main__":
    main()
