#!/usr/bin/env bash
# Trains in three processes under `lathe launch --max_restarts` while random faults happen: a process is killed or
# stopped, or the disk is full for a while. The final model must have the bits of an undisturbed training.
#   tests/soak.sh [SECONDS [SECONDS-BETWEEN-FAULTS]]     # 1800 and 20; needs bazel-bin/apps and, for full disks, root
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
length=${1:-1800}
pause=${2:-20}
temp=$(mktemp -d)
launcher=
cleanup() {
  if [ -n "$launcher" ]; then kill -9 "$launcher" 2>/dev/null || true; fi
  if mountpoint -q "$temp/disk"; then umount "$temp/disk"; fi
  rm -rf "$temp"
}
trap cleanup EXIT
mkdir "$temp/disk" "$temp/model"
full_disks=1
mount -t tmpfs -o size=64m none "$temp/disk" 2>/dev/null || full_disks=0

words=(good bad film plot great dull fine poor story the is was)
{ printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]'; printf '%s\n' "${words[@]}"; } >"$temp/model/vocab.txt"
cat >"$temp/model/config.json" <<'CONFIG'
{"architectures": ["BertForSequenceClassification"], "model_type": "bert", "vocab_size": 17, "hidden_size": 64,
 "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128, "hidden_act": "gelu",
 "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 32, "type_vocab_size": 2,
 "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0}
CONFIG
{
  echo sentence,label
  RANDOM=7
  for _ in $(seq 2000); do
    word=${words[RANDOM % 8]}
    case $word in good | film | great | fine) label=positive ;; *) label=negative ;; esac
    echo "the ${words[8 + RANDOM % 4]} is $word,$label"
  done
} >"$temp/train.csv"

train() {  # OUT MAX_STEPS LAUNCH-OPTIONS...
  local out=$1 steps=$2
  shift 2
  bazel-bin/apps/lathe/lathe launch --cpu --num_processes 3 --num_threads_per_process 1 "$@" \
    bazel-bin/apps/finetune/finetune --config_name "$temp/model" --train_file "$temp/train.csv" --do_train \
    --output_dir "$out" --max_steps "$steps" --logging_steps 1000 --disable_tqdm --ddp_timeout 3 \
    --save_strategy steps --save_steps 1000000 --save_seconds 1 --save_total_limit 2
}

# As many steps as an undisturbed training makes in half the time.
SECONDS=0
train "$temp/probe" 2000 >/dev/null
steps=$((2000 * length / 2 / (SECONDS + 1)))
echo "soak: $steps steps"
train "$temp/whole" "$steps" >/dev/null
train "$temp/disk/out" "$steps" --max_restarts 200 >"$temp/log" 2>&1 &
launcher=$!
faults=0
while sleep "$pause" && kill -0 "$launcher" 2>/dev/null; do
  mapfile -t ranks < <(pgrep -P "$launcher" finetune)
  [ ${#ranks[@]} -gt 0 ] || continue
  faults=$((faults + 1))
  rank=${ranks[RANDOM % ${#ranks[@]}]}
  case $((RANDOM % (2 + full_disks))) in
    0) kill -9 "$rank" || true ;;
    1) kill -STOP "$rank" || true ;;
    2)
      dd if=/dev/zero of="$temp/disk/filler" bs=1M 2>/dev/null || true
      sleep 3
      rm -f "$temp/disk/filler"
      ;;
  esac
done
if ! wait "$launcher"; then
  tail -20 "$temp/log" >&2
  echo "soak: the training failed after $faults faults" >&2
  exit 1
fi
launcher=
restarts=$(grep -c 'starting the job again' "$temp/log" || true)
if ! cmp "$temp/whole/model.safetensors" "$temp/disk/out/model.safetensors"; then
  echo "soak: the models differ after $faults faults and $restarts restarts" >&2
  exit 1
fi
echo "soak: the same bits after $faults faults and $restarts restarts"
