#!/usr/bin/env bash
# Takes a fresh machine to a trained text classifier, which tells the section of a Debian package.
set -euo pipefail

usage() {
  cat <<END
Installs what is missing, builds Lathe, makes a data set of this machine's package lists, trains a
classifier on it, evaluates it and classifies three texts.

Usage: tools/quickstart.sh [--model MODEL] [--epochs N] [--output DIR]
  --model MODEL  fine-tune this pretrained model instead of a small one from fresh weights: a
                 folder, or a name on the Hugging Face Hub such as google-bert/bert-base-uncased
                 (a larger model takes longer: hours for BERT-base on 2 cores)
  --epochs N     passes over the training data (default: $epochs; 3 with --model)
  --output DIR   folder for the data and the model (default: quickstart/ in the source tree)
END
}

fail() {
  echo "error: $1" >&2
  exit "${2:-1}"
}

model=''
hub_name=''
name_part='[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?'
epochs=4
epochs_given=''
caller=$PWD
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=$root/quickstart
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --model | --epochs | --output) [ $# -ge 2 ] || fail "$1 needs a value" 2 ;;
    *) usage >&2; fail "unknown argument $1" 2 ;;
  esac
  case $1 in
    --model)
      model=''
      hub_name=''
      if [ -d "$2" ]; then
        [ -f "$2/config.json" ] || fail "$2: holds no model (config.json is missing)"
        model=$(realpath -s -- "$2")
      elif [[ $2 =~ ^$name_part(/$name_part)?$ ]]; then
        hub_name=$2
      else
        fail "$2: no such folder, and no name of a model on the Hub (owner/name)"
      fi
      ;;
    --epochs)
      [[ $2 =~ ^([0-9]+\.?|[0-9]*\.[0-9]+)$ ]] || fail "--epochs must be a number but is \"$2\"" 2
      epochs_given=$2
      ;;
    --output) output=$(realpath -m -- "$2") ;;
  esac
  shift 2
done
mkdir -p -- "$output"
cd "$root"

heading() { printf '\n== %s  (%d s so far)\n' "$1" "$SECONDS"; }
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  else
    command -v sudo >/dev/null || fail "only root can do this, and there is no sudo; run this first, as root: $*"
    sudo "$@"
  fi
}

heading "Set-up"
tools/setup.sh

heading "Build"
quiet=()
[ -t 2 ] || quiet=(--color=no --noshow_progress)  # a log needs no progress bar
bazel build "${quiet[@]}" //apps/finetune //apps/lathe //examples:package_sections

if [ -n "$hub_name" ]; then
  heading "Model"
  model=$(bazel-bin/apps/lathe/lathe download "$hub_name")
  echo "$hub_name is in $model"
fi

heading "Data"
data=$output/data
if [ -f "$data/model/config.json" ]; then
  echo "using $data (remove it to make it anew)"
else
  if [ "$(apt-cache dumpavail | grep -c '^Package: ')" -lt 10000 ]; then
    as_root apt-get update -qq
  fi
  apt-cache dumpavail | bazel-bin/examples/package_sections "$data"
fi

heading "Training and evaluation"
if [ -n "$model" ]; then
  start=(--model_name_or_path "$model" --ignore_mismatched_sizes --learning_rate 5e-5)
  epochs=3
else
  start=(--config_name "$data/model" --tokenizer_name "$data/model" --learning_rate 7e-4 --label_smoothing_factor 0.1)
fi
epochs=${epochs_given:-$epochs}
grep -qwE 'avx512_bf16|amx_bf16' /proc/cpuinfo && start+=(--bf16)
bazel-bin/apps/finetune/finetune "${start[@]}" \
  --train_file "$data/train.tsv" --validation_file "$data/dev.tsv" \
  --text_columns name,description --label_column section --max_seq_length 64 \
  --do_train --do_eval --eval_strategy epoch --num_train_epochs "$epochs" \
  --per_device_train_batch_size 32 --per_device_eval_batch_size 64 --group_by_length \
  --warmup_ratio 0.1 --weight_decay 0.01 \
  --output_dir "$output/model" --overwrite_output_dir

heading "Three texts that the model has not seen"
texts=(
  $'starfighter\tSpace shooter with network play'
  $'libquux-dev\tDevelopment files for the quux compression library'
  $'python3-webforms\tValidate and render HTML forms in Python 3'
)
labels=$(printf '%s\n' "${texts[@]}" | bazel-bin/apps/lathe/lathe predict "$output/model" --pairs)
for text in "${texts[@]}"; do
  read -r label
  printf '%s\n    %s\n' "$text" "$label"
done <<<"$labels"

accuracy=$(sed -n 's/.*"eval_accuracy": *\([0-9.]*\).*/\1/p' "$output/model/eval_results.json")
heading "Done: accuracy $(LC_ALL=C printf '%.4f' "$accuracy")"
# Prints a path as the user can type it in the folder where the script was started.
as_typed() { printf '%q' "$(realpath -s --relative-base="$caller" -- "$1")"; }
cat <<END
The model is in $output/model. Curves of its training and its errors are in $(as_typed "$output/model/report.html").
To classify texts of your own (name, a tab, description):
  printf 'mytool\tWhat it does in one line\n' | $(as_typed bazel-bin/apps/lathe/lathe) predict $(as_typed "$output/model") --pairs
To train on data of your own, see README.md.
END
