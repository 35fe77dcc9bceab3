#!/usr/bin/env bash
# Trains in three processes under `lathe launch --max_restarts` while random faults happen: a process is killed or
# stopped, or the disk is full for a while. The model, the moments and the losses in the end must have the bits of an
# undisturbed training.
#   tests/soak.sh [SECONDS [SECONDS-BETWEEN-FAULTS [SEED]]]     # 1800, 20 and 7
# Needs the built programs (bazel build //apps/...) and, for full disks, root. SECONDS is about how long the disturbed
# training takes. The undisturbed one before takes three quarters of that.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
length=${1:-1800}
pause=${2:-20}
seed=${3:-7}
temp=$(mktemp -d)
launcher=
cleanup() {
  if [ -n "$launcher" ]; then
    kill -9 "$launcher" 2>/dev/null || true  # the processes end with it
    wait "$launcher" 2>/dev/null || true
  fi
  if mountpoint -q "$temp/disk"; then umount -l "$temp/disk"; fi
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
RANDOM=7  # the data are always the same
{
  echo sentence,label
  for _ in $(seq 2000); do
    word=${words[RANDOM % 8]}
    case $word in good | film | great | fine) label=positive ;; *) label=negative ;; esac
    echo "the ${words[8 + RANDOM % 4]} is $word,$label"
  done
} >"$temp/train.csv"
RANDOM=$seed

# training OUT MAX_STEPS LAUNCH-OPTIONS...: sets `command` to that training.
training() {
  local out=$1 steps=$2
  shift 2
  command=(bazel-bin/apps/lathe/lathe launch --cpu --num_processes 3 --num_threads_per_process 1 "$@"
    bazel-bin/apps/finetune/finetune --config_name "$temp/model" --train_file "$temp/train.csv" --do_train
    --output_dir "$out" --max_steps "$steps" --logging_steps 1000 --disable_tqdm --ddp_timeout 3
    --save_strategy steps --save_steps 1000000 --save_seconds 1 --save_total_limit 2)
}

# newest_step OUT: prints the step of the newest checkpoint there; 0 if there is none.
newest_step() {
  find "$1" -maxdepth 1 -name 'checkpoint-*' 2>/dev/null | sed 's/.*-//' | sort -n | tail -1 | grep . || echo 0
}

# Finds out how many steps an undisturbed training makes in three quarters of the time.
training "$temp/probe" 2000
start=$EPOCHREALTIME
"${command[@]}" >/dev/null
milliseconds=$(((${EPOCHREALTIME/[.,]/} - ${start/[.,]/}) / 1000))
steps=$((2000 * length * 750 / milliseconds))
echo "soak: $steps steps, a fault every $pause s, seed $seed"
training "$temp/whole" "$steps"
"${command[@]}" >/dev/null

training "$temp/disk/out" "$steps" --max_restarts 200
"${command[@]}" >"$temp/log" 2>&1 &
launcher=$!
kills=0 stops=0 fills=0
while sleep "$pause" && kill -0 "$launcher" 2>/dev/null; do
  mapfile -t ranks < <(pgrep -P "$launcher" finetune)
  [ ${#ranks[@]} -gt 0 ] || continue  # they are being started
  rank=${ranks[RANDOM % ${#ranks[@]}]}
  fault=$((RANDOM % (2 + full_disks)))
  # The last files must be written, so the disk has room in the end.
  if [ "$fault" -eq 2 ] && [ "$(newest_step "$temp/disk/out")" -gt $((steps * 9 / 10)) ]; then fault=0; fi
  case $fault in
    0) if kill -9 "$rank" 2>/dev/null; then kills=$((kills + 1)); fi ;;
    1) if kill -STOP "$rank" 2>/dev/null; then stops=$((stops + 1)); fi ;;
    2)
      fills=$((fills + 1))
      dd if=/dev/zero of="$temp/disk/filler" bs=1M 2>/dev/null || true
      sleep 3
      rm -f "$temp/disk/filler"
      ;;
  esac
done
fail() {
  tail -20 "$temp/log" >&2
  echo "soak: $1 after $kills kills, $stops stops and $fills full disks" >&2
  exit 1
}
status=0
wait "$launcher" || status=$?
launcher=
[ "$status" -eq 0 ] || fail "the training failed with exit code $status"
restarts=$(grep -c 'starting the job again' "$temp/log" || true)
unsaved=$(grep -c 'warning: no checkpoint was saved' "$temp/log" || true)
last=checkpoint-$steps
for file in model.safetensors "$last"/optimizer-0000{1,2,3}-of-00003.h5; do
  cmp "$temp/whole/$file" "$temp/disk/out/$file" || fail "the bits of $file differ"
done
# The last entry has the whole training's times.
losses() { grep -E '"(loss|grad_norm|learning_rate)":' "$1/$last/trainer_state.json"; }
cmp <(losses "$temp/whole") <(losses "$temp/disk/out") || fail "the losses differ"
[ "$restarts" -ge $((kills + stops > 0 ? 1 : 0)) ] || fail "no restart"
[ "$((kills + stops + fills))" -gt 0 ] || fail "nothing happened"
echo "soak: the same bits after $kills kills, $stops stops and $fills full disks; $restarts restarts," \
  "$unsaved checkpoints were not saved"
