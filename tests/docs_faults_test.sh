#!/usr/bin/env bash
# Tests docs_test.sh and tools/check_links.sh: plants one fault after the other in copies of the pages and the example, or in
# a small site. The scripts must find each of them.
set -euo pipefail

script_under_test=$(readlink -f "$(dirname "${BASH_SOURCE[0]}")/docs_test.sh")
root=$(dirname "$(dirname "$script_under_test")")
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failed=0

# fresh: a tree of links to the repository's, but for what a fault may change.
fresh() {
  rm -rf "${tree:?}"/*
  ln -s "$root"/* "$tree"
  rm "$tree"/{docs,README.md,CONTRIBUTING.md,examples}
  cp -r "$root"/{docs,README.md,CONTRIBUTING.md,examples} "$tree"
}

# check WHAT EXPECTED: the script finds a fault and says EXPECTED, or finds none if EXPECTED is empty.
check() {
  local what=$1 expected=$2 output status=0
  output=$("$script_under_test" "$tree" 2>&1) || status=$?
  if [ -z "$expected" ]; then
    [ "$status" -eq 0 ] && return
  else
    [ "$status" -eq 1 ] && grep -qF -- "$expected" <<<"$output" && return
  fi
  echo "FAILED: $what: exit code $status, \"$expected\" was expected:"
  echo "$output"
  failed=1
}

# plant FILE SED-SCRIPT: the sed script, which must change the file, plants a fault.
plant() {
  cp "$tree/$1" "$tree/before"
  sed -i -E "$2" "$tree/$1"
  if cmp -s "$tree/before" "$tree/$1"; then
    echo "FAILED: $2 changes nothing in $1"
    failed=1
  fi
  rm "$tree/before"
}

# fault FILE SED-SCRIPT EXPECTED: plants a fault in a fresh tree.
fault() {
  fresh
  plant "$1" "$2"
  check "$2 in $1" "$3"
}

# faults: plants all in one fresh tree. Standard input has a line for each: FILE, SED-SCRIPT and EXPECTED, with tabs between.
faults() {
  local file script expected output status=0 all=()
  fresh
  while IFS=$'\t' read -r file script expected; do
    plant "$file" "$script"
    all+=("$expected")
  done
  output=$("$script_under_test" "$tree" 2>&1) || status=$?
  for expected in "${all[@]}"; do
    if [ "$status" -ne 1 ] || ! grep -qF -- "$expected" <<<"$output"; then
      echo "FAILED: exit code $status, \"$expected\" was expected:"
      echo "$output"
      failed=1
    fi
  done
}

fresh
check "the repository's own pages" ""

# Links, paths, flags (of scripts: in a line of prose, in a block, on a continued line, of a script in Python), variables.
faults <<'END'
README.md	s,\(docs/gpus\.md\),(docs/gpu.md),	a link to docs/gpu.md, which is not there
README.md	s,docs/training\.md#use-from-c,docs/training.md#from-c,	which has no such heading
CONTRIBUTING.md	s,//core:ops/losses_test,//core:ops/loss_test,	//core:ops/loss_test: no such test
docs/extending/op.md	s,losses_test_levels,shape_test_levels,	//core:ops/shape_test_levels: no such test
CONTRIBUTING.md	s,tests/emulator,tests/emulators,	tests/emulators does not exist
README.md	s,--num_train_epochs,--train_epochs,	no program in apps/ has the flag --train_epochs
README.md	s,^(.*finetune .*)--save_strategy,\1--save_strategies,	no program in apps/ has the flag --save_strategies
docs/training.md	s,^(\| `--)logging_steps,\1loging_steps,	no program in apps/ has the flag --loging_steps
docs/environment.md	s,LATHE_JOB_ID,LATHE_JOB_IDS,	docs/environment.md: nothing reads LATHE_JOB_IDS
docs/environment.md	s,`COLUMNS`,columns,	docs/environment.md does not name COLUMNS, which is read
docs/environment.md	s,`LC_ALL`,`LC_ALLE`,	docs/environment.md does not name LC_ALL, which is read
docs/environment.md	s,`LATHE_CUDA_ARCHS`,archs,	docs/environment.md does not name LATHE_CUDA_ARCHS, which is read
docs/architecture.md	s,^(\| op \|.*),\1\n\1,	the glossary has 31 terms, more than 30
docs/architecture.svg	s, loading/,,	docs/architecture.svg names other folders than data/ has
README.md	s,quickstart\.sh --model,quickstart.sh --models,	README.md: tools/quickstart.sh does not take --models
docs/hi.md	s,test\.sh --levels,test.sh --level,	docs/hi.md: tools/test.sh does not take --level
CONTRIBUTING.md	s,test\.sh --sanitizers,test.sh --sanitizer,	tools/test.sh does not take --sanitizer
docs/gpu_results.md	s,^( +)--with ,\1--along ,	tools/bundle.sh does not take --along
docs/performance.md	s,--tokenizer DIR,--tokenizers DIR,	compare_tokenizers.py does not take --tokenizers
docs/performance.md	s,(bench\.sh +)--benchmark_filter,\1--filter,	tools/bench.sh does not take --filter
END
faults <<'END'
docs/architecture.svg	s, loading/, loading/ loaders/,	docs/architecture.svg names other folders than data/ has
docs/architecture.md	s,`loading/`,`loaders/`,	docs/architecture.md names other folders than data/ has
END

fault README.md 's,$, and so on and so forth,' "bytes, more than 7000"

# The loop: a page that goes its own way, an example that does, and another order. Faults of one tree are of different pages.
faults <<'END'
examples/README.md	s,optimizer\.ZeroGrad\(\);,optimizer.Clear();,	examples/README.md: the loop's "optimizer.Clear();" is not in examples/table_mlp.cc
README.md	s,scheduler->Step\(\);,scheduler.Step();,	README.md: the loop's "scheduler.Step();" is not in examples/training_loop.cc
docs/zh.md	s,lr = 3e-5,lr = 3e-4,	docs/zh.md: the loop's "lathe::AdamWoptimizer(model->Parameters(),{.lr=3e-4});"
END
faults <<'END'
docs/zh.md	s,examples/training_loop\.cc -->,examples/loop.cc -->,	docs/zh.md: there is no examples/loop.cc
docs/hi.md	s,optimizer\.Step\(\);,optimizer.Step(1);,	docs/hi.md: its code differs from README.md's
END
faults <<'END'
README.md	/^<!-- C\+\+ of/d	README.md shows no training loop in C++
docs/ja.md	/^```cpp/,/^```$/d	docs/ja.md shows no training loop in C++
END
fault examples/training_loop.cc 's,Backward\(outputs\.loss\),Backward(outputs.loss.Sum()),' "docs/ja.md: the loop's \"accelerator.Backward(outputs.loss);\""
fault examples/training_loop.cc '/ZeroGrad/d; s,^( *)optimizer\.Step\(\);,\1optimizer.ZeroGrad();\n&,' "README.md: the loop's \"optimizer.ZeroGrad();\""

# site LINE EXPECTED: a site of two pages, one of them with this line; check_links.sh says EXPECTED and finds a fault, or no fault
# if it says how many links there are.
site() {
  local output status=0
  rm -rf "${tree:?}"/*
  mkdir "$tree/api"
  printf '%s\n' '<html><!-- <a href="none.html"> --><!--' '<a href="none.js">' '--><a href="api/a.html#one">a</a>' "$1" >"$tree/index.html"
  printf '%s\n' '<a id="one" href="../index.html">' '<a class="two" name="two" href="https://a.org/none.html">' >"$tree/api/a.html"
  output=$("$root/tools/check_links.sh" "$tree" 2>&1) || status=$?
  if [[ $2 == links:* ]]; then
    [ "$status" -eq 0 ] && [ "$output" = "$2" ] && return
  else
    [ "$status" -eq 1 ] && [ "$output" = "index.html: a link to $2" ] && return
  fi
  echo "FAILED: a site with $1: exit code $status, \"$2\" was expected:"
  echo "$output"
  failed=1
}

site '<a href="/api/a.html?q=1&amp;p=2#two">' "links: 3 lead to what is there"
site '<a href="api/../api/./a.html"><img src="#">' "links: 4 lead to what is there"
site '<a href="api/b.html">' "api/b.html, which is not there"
site '<p><a class="a" href="api/a.html#three">' "api/a.html#three, which has no such anchor"
site '<a href="#one">' "#one, which has no such anchor"
site '<!-- one --><script src="js/a.js"></script><!-- two -->' "js/a.js, which is not there"
site '<a href="api/">' "api/, which is not there"
site '<a href="../index.html">' "../index.html, which is not there"
site '<a href="file:line:">' "file:line:, which is not there"

[ "$failed" -eq 0 ] && echo "every planted fault was found"
exit "$failed"
