#!/usr/bin/env python3
"""Measures how much faster one program trains than another, on a machine that other work disturbs.

All programs are started, then stopped and continued in turn for some seconds each, so that other work affects them alike.

  python3 tests/benchmarks/turns.py [--steps N] [--turn SECONDS] COMMAND COMMAND ...

A COMMAND is a line for the shell. Its output has a line that begins with "step " for each step, as finetune's has with
--logging_steps 1 --disable_tqdm. It makes more than N steps. For each command this prints the milliseconds of a step, and how
many times as fast as the first command it is, with the standard error of ten parts of the run. The first four steps don't
count.

This compares two threads with one:
  run="bazel-bin/apps/finetune/finetune --model_name_or_path DIR --train_file train.tsv --do_train --per_device_train_batch_size 32
       --max_steps 1000 --logging_steps 1 --disable_tqdm --overwrite_output_dir --output_dir"
  python3 tests/benchmarks/turns.py "OMP_NUM_THREADS=1 $run /tmp/one" "OMP_NUM_THREADS=2 $run /tmp/two"
"""
import argparse
import os
import select
import signal
import statistics
import subprocess
import sys
import time

WARM_UP = 4


class Program:
    def __init__(self, command):
        self.process = subprocess.Popen(" ".join(command.split()), shell=True, stdout=subprocess.PIPE, start_new_session=True)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.active, self.rest, self.steps = 0.0, b"", []  # steps: how long it had run when each was done

    def signal(self, which):
        os.killpg(self.process.pid, which)

    def watch(self, enough):
        """Records steps until enough(seconds of this turn)."""
        start = time.perf_counter()
        while not enough(time.perf_counter() - start):
            select.select([self.process.stdout], [], [], 0.05)
            said = self.process.stdout.read()
            now = time.perf_counter() - start
            if said == b"":
                sys.exit(f"\"{self.process.args}\" ended after {len(self.steps)} steps: it must make more than --steps")
            *lines, self.rest = (self.rest + (said or b"")).split(b"\n")
            self.steps += [self.active + now for line in lines if line.startswith(b"step ")]
        self.active += time.perf_counter() - start


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--turn", type=float, default=3.0)
    p.add_argument("commands", nargs="+", metavar="COMMAND")
    a = p.parse_args()
    if a.steps < WARM_UP + 20:
        sys.exit(f"--steps must be at least {WARM_UP + 20}")
    programs = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and its programs with it
    try:
        for command in a.commands:
            programs.append(Program(command))
            programs[-1].watch(lambda _, program=programs[-1]: len(program.steps) >= WARM_UP)
            programs[-1].signal(signal.SIGSTOP)
        order = list(programs)
        while any(len(program.steps) < a.steps for program in programs):
            for program in order:
                program.signal(signal.SIGCONT)
                program.watch(lambda seconds: seconds >= a.turn)
                program.signal(signal.SIGSTOP)
            order.reverse()
    finally:
        for program in programs:
            program.signal(signal.SIGKILL)
            program.process.wait()
    first = programs[0].steps
    bounds = [WARM_UP - 1 + round(i * (a.steps - WARM_UP) / 10) for i in range(11)]
    for program in programs:
        steps = program.steps
        ratios = [(first[j] - first[i]) / (steps[j] - steps[i]) for i, j in zip(bounds, bounds[1:])]
        whole = (first[a.steps - 1] - first[WARM_UP - 1]) / (steps[a.steps - 1] - steps[WARM_UP - 1])
        mean = 1e3 * (steps[a.steps - 1] - steps[WARM_UP - 1]) / (a.steps - WARM_UP)
        print(f"{mean:.2f} ms a step, {whole:.3f} +- {statistics.stdev(ratios) / len(ratios) ** 0.5:.3f} times as fast: "
              f"{program.process.args}")


if __name__ == "__main__":
    main()
