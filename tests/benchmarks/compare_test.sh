#!/usr/bin/env bash
# compare.py prints what docs/performance.md has: lines for each run, and a table of several models. Runs are faked.
set -euo pipefail

fail() {
  echo "FAILED: $1" >&2
  exit 1
}

command -v python3 >/dev/null || { echo "skipped: no python3"; exit 0; }
cat >"${TEST_TMPDIR:?}/faked.py" <<'END'
"""Runs compare.py. Lathe's n-th run has 100 n tokens/s, and the peer's runs have 150 n. The model "bad" has no peer."""
import json
import sys
import types

sys.path.insert(0, "tests/benchmarks")
sys.dont_write_bytecode = True
import compare

runs = 0


def result(speed):
    global runs
    runs += 1
    return dict(tokens=speed * runs + 0.4, first=1.5, memory=runs / 100 * speed, evaluation=None)


def run(command, **_):
    """Stands for the process of one of the peer's sides. Its command must name one model."""
    sys.argv = command[1:]
    a = compare.arguments()
    assert len(a.model) == 1, a.model
    said = dict(random=[3], grouped=[3]) if a.side == "files" else result(150)
    return types.SimpleNamespace(returncode=a.model[0] == "models/bad", stdout=json.dumps(said))


arguments = sys.argv
compare.subprocess.run = lambda command, **_: (run(command), setattr(sys, "argv", arguments))[0]
compare.lathe = lambda a, *_: result(100)
sys.exit(compare.main())
END
compare() {
  python3 "$TEST_TMPDIR/faked.py" --finetune finetune --train train.tsv "$@"
}

[[ $(compare --model models/bert/) == "\
random  lathe     tokens 100, first 1.5, memory 1
random  default   tokens 300, first 1.5, memory 3
random  lathe     tokens 300, first 1.5, memory 3
bert no: tokens/s 0.33 to 1.00 of the peer's default
bert no: memory 0.33 to 1.00 of the peer's default
grouped lathe     tokens 400, first 1.5, memory 4
grouped best      tokens 750, first 1.5, memory 7.5
grouped lathe     tokens 600, first 1.5, memory 6
bert no: tokens/s 0.53 to 0.80 of the peer's best
bert no: memory 0.53 to 0.80 of the peer's best" ]] || { compare --model models/bert/ >&2; fail "another output of one model"; }

table() {
  grep '^|' "$TEST_TMPDIR/out"
}
compare --model models/bert models/roberta/ --precision bf16 >"$TEST_TMPDIR/out" || fail "two models"
(($(grep -c "^random  default" "$TEST_TMPDIR/out") == 2)) || fail "not each model has runs"
[[ $(table) == "\
| model, precision | Lathe | peer's default | ratio | Lathe, grouped | peer's best | ratio | memory, Lathe over default / best |
| --- | --- | --- | --- | --- | --- | --- | --- |
| bert bf16 | 100, 300 | 300 | 0.33 to 1.00 | 400, 600 | 750 | 0.53 to 0.80 | 0.33 / 0.53 |
| roberta bf16 | 700, 900 | 1,200 | 0.58 to 0.75 | 1,000, 1,200 | 1,650 | 0.61 to 0.73 | 0.58 / 0.61 |" ]] || { table >&2; fail "another table"; }

# A model that fails does not take the others' measurements away.
! compare --model models/bad models/bert >"$TEST_TMPDIR/out" 2>"$TEST_TMPDIR/err" || fail "the bad model is no error"
grep -q '^bad: the part "files" failed$' "$TEST_TMPDIR/out" || fail "the bad model has no line"
grep -q '^not measured: models/bad$' "$TEST_TMPDIR/err" || fail "the bad model is not named"
(($(table | wc -l) == 3)) || fail "the good model has no row"
echo passed
