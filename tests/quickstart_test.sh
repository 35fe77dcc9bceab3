#!/usr/bin/env bash
# Runs tools/quickstart.sh beside programs that only write down how they were called, and checks how it trains and what
# becomes of --model.
set -euo pipefail

script=$(readlink -f "$(dirname "${BASH_SOURCE[0]}")/../tools/quickstart.sh")
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failed=0
mkdir -p "$tree"/root/{tools,bazel-bin/apps/finetune,bazel-bin/apps/lathe,bazel-bin/examples} "$tree"/{bin,caller/folder,caller/empty}
cp "$script" "$tree/root/tools/quickstart.sh"
touch "$tree/caller/folder/config.json"

# program FILE: makes a program of its standard input.
program() {
  { echo '#!/usr/bin/env bash'; cat; } >"$1"
  chmod +x "$1"
}
program "$tree/root/tools/setup.sh" <<<''
program "$tree/bin/bazel" <<<"echo built >>'$tree/calls'"
program "$tree/bin/apt-cache" <<<'for i in {1..10000}; do echo "Package: p$i"; done'
program "$tree/root/bazel-bin/examples/package_sections" <<<'cat >/dev/null'
program "$tree/root/bazel-bin/apps/finetune/finetune" <<END
echo "finetune \$*" >>'$tree/calls'
mkdir -p '$tree/out/model'
echo '{"eval_accuracy": 0.5}' >'$tree/out/model/eval_results.json'
END
program "$tree/root/bazel-bin/apps/lathe/lathe" <<END
echo "lathe \$*" >>'$tree/calls'
case \$1 in
  download)
    [ "\$2" != owner/none ] || { echo "error: \$2: no such model" >&2; exit 1; }
    echo "/cache/\$2"
    ;;
  predict) sed 's/.*/label/' ;;
esac
END

# check STATUS EXPECTED ARGUMENT...: the script ends so, and its output or its calls hold the text.
check() {
  local expected_status=$1 expected=$2 output status=0
  shift 2
  : >"$tree/calls"
  output=$(cd "$tree/caller" && PATH=$tree/bin:$PATH "$tree/root/tools/quickstart.sh" --output "$tree/out" "$@" 2>&1) || status=$?
  output+=$'\n'$(cat "$tree/calls")
  [ "$status" -eq "$expected_status" ] && grep -qF -- "$expected" <<<"$output" && return
  echo "FAILED: quickstart.sh $*: exit code $status, \"$expected\" was expected:"
  echo "$output"
  failed=1
}

check 0 "finetune --config_name $tree/out/data/model"
check 0 "--learning_rate 7e-4 --label_smoothing_factor 0.1 "
check 0 "--num_train_epochs 4 "
check 0 "--num_train_epochs 2.5 " --epochs 2.5
check 0 "Curves of its training and its errors are in $tree/out/model/report.html."
check 0 "--num_train_epochs 3 " --model folder
check 0 "--learning_rate 5e-5 " --model folder
if grep -q label_smoothing "$tree/calls"; then
  echo "FAILED: smooths the labels of a pretrained model"
  failed=1
fi
check 0 "finetune --model_name_or_path $tree/caller/folder --ignore" --model folder
check 0 "lathe download owner/name-1.0" --model owner/name-1.0
check 0 "finetune --model_name_or_path /cache/owner/name-1.0 --ignore" --model owner/name-1.0
check 0 "finetune --model_name_or_path /cache/bert --ignore" --model folder --model bert
check 1 "empty: holds no model (config.json is missing)" --model empty
for path in ./none /none/at/all a/b/c -x ''; do
  check 1 "error: $path: no such folder, and no name of a model on the Hub" --model "$path"
  [ ! -s "$tree/calls" ] || { echo "FAILED: $path: something was built first"; failed=1; }
done
check 1 "error: owner/none: no such model" --model owner/none
if grep -q finetune "$tree/calls"; then
  echo "FAILED: trains although there is no such model"
  failed=1
fi
exit "$failed"
