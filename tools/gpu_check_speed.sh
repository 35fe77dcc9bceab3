# The stage "speed" of tools/gpu_check.sh, which sources this: kernels and training steps alone, then whole trainings of
# Lathe and of a peer, in turn.

# The device's memory in use, MiB, while run runs COMMAND...: sets peak (what it took above what was taken before).
run_watching_memory() {
  local before watcher i
  before=$(nvidia-smi -i 0 --query-gpu=memory.used --format=csv,noheader,nounits)
  rm -f "$work/memory"
  nvidia-smi -i 0 --query-gpu=memory.used --format=csv,noheader,nounits -lms 100 >"$work/memory" 2>/dev/null &
  watcher=$!
  # Until it runs it is a copy of this shell, which catches the signal that is to end it.
  for ((i = 0; i < 50; ++i)); do
    [ ! -s "$work/memory" ] && kill -0 "$watcher" 2>/dev/null || break
    sleep 0.1
  done
  "$@"
  kill "$watcher" 2>/dev/null
  wait "$watcher" 2>/dev/null
  peak=$(awk -v b="$before" '$1 + 0 > m { m = $1 } END { print m - b }' "$work/memory")
}

# lathe_speed CASE CONFIG FILE LENGTH BATCH WARM STEPS [OPTIONS...]: two runs, of which the longer one's last STEPS steps
# count.
lathe_speed() {
  local case=$1 system='Lathe' common steps seconds=() samples=()
  [ $# -le 7 ] || system="Lathe ${*:8}"
  common=(--device cuda --bf16 --train_file "$3" --max_seq_length "$4" --per_device_train_batch_size "$5" --seed 1 "${@:8}")
  for steps in "$6" $(($6 + $7)); do
    run_watching_memory finetune 150 "$work/speed" "$2" "${common[@]}" --max_steps "$steps"
    if [ $rc -ne 0 ]; then
      if grep -qi 'memory' "$work/output" && [ $rc -ne 124 ]; then
        record skipped "$case, $system" "$took" "not enough memory: $(last_lines 2)"
      elif [ $rc -eq 124 ]; then
        record skipped "$case, $system" "$took" "not done in time"
      else
        record failed "$case, $system" "$took" "exit code $rc: $(last_lines)"
      fi
      return 1
    fi
    seconds+=("$(number train_runtime "$work/speed/train_results.json")")
    samples+=("$(awk -v r="$(number train_samples_per_second "$work/speed/train_results.json")" -v s="${seconds[-1]}" 'BEGIN { print r * s }')")
  done
  metric "$case" "$system" $(awk -v t0="${seconds[0]}" -v t1="${seconds[1]}" -v n0="${samples[0]}" -v n1="${samples[1]}" -v steps="$7" 'BEGIN {
      t = t1 - t0; if (t > 0) printf "samples_per_s=%.1f step_ms=%.2f", (n1 - n0) / t, 1000 * t / steps }') \
    "first_step_s=$(number time_to_first_step "$work/speed/train_results.json")" "memory_mib=$peak" "took_s=$took"
}

# peer_speed CASE SYSTEM CONFIG FILE LENGTH BATCH WARM STEPS OPTIONS...: in float32 unless the options say otherwise.
peer_speed() {
  local case=$1 system=$2 config=$3 file=$4 length=$5 batch=$6 warm=$7 steps=$8 saved=("${environment[@]}")
  shift 8
  environment=(LC_ALL=C HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=true)  # it has libraries of its own
  run_watching_memory run 200 python3 "$peer" --model "$config" --from_config --train "$file" --max_length "$length" \
    --batch_size "$batch" --warm "$warm" --max_steps $((warm + steps)) "$@"
  environment=("${saved[@]}")
  grep '^{"' "$work/output" | tail -n 1 >"$work/peer.json"
  if [ $rc -ne 0 ] || [ ! -s "$work/peer.json" ]; then
    record skipped "$case, $system" "$took" "exit code $rc: $(last_lines 2)"
    return 1
  fi
  metric "$case" "$system" "samples_per_s=$(number samples_per_s "$work/peer.json")" \
    "step_ms=$(awk -v s="$(number seconds "$work/peer.json")" -v n="$steps" 'BEGIN { printf "%.2f", 1000 * s / n }')" \
    "first_step_s=$(number first_step_s "$work/peer.json")" "memory_mib=$peak" "took_s=$took"
}

# compiled_peer_speed CASE CONFIG FILE LENGTH BATCH WARM STEPS: not with --quick.
compiled_peer_speed() {
  local case=$1 system="peer, grouped, fused AdamW and compiled"
  shift
  [ -z "$quick" ] || return 0
  if [ "$(time_left)" -lt 200 ]; then
    record skipped "$case, $system" 0 "no time left"
    return
  fi
  peer_speed "$case" "$system" "$@" --precision bf16 --group_by_length --fused_adamw --compile
}

# benchmark NAME LIMIT PROGRAM ARGUMENTS...: its lines go into the report.
benchmark() {
  local name=$1 limit=$2 program=$bin/tests/benchmarks/$3
  shift 3
  if [ ! -x "$program" ]; then
    record skipped "$name" 0 "no ${program##*/} here"
    return 1
  fi
  run "$limit" "$program" --device cuda "$@"
  if [ $rc -eq 0 ]; then
    while IFS= read -r line; do printf 'benchmark\t%s\t%s\n' "$name" "$line" >>"$work/metrics"; done <"$work/output"
  elif [ $rc -eq 124 ]; then
    record skipped "$name" "$took" "not done in time"
  elif grep -qi 'out of memory' "$work/output"; then
    record skipped "$name" "$took" "not enough memory: $(last_lines 1)"
  else
    record failed "$name" "$took" "exit code $rc: $(last_lines)"
  fi
  return $rc
}

# step_speed SIZE PRECISION BATCH LENGTH STEPS [NOTE]: training steps without a loader, and what share of the products'
# ceiling they reach.
step_speed() {
  local name="step-$1-$4-$3-$2${6:+-$6}" at
  benchmark "$name" 100 training_step --size "$1" --precision "$2" --batch "$3" --length "$4" --steps "$5" || return
  at='[0-9.]\+'
  # shellcheck disable=SC2046
  metric "$name" "Lathe, steps alone" $(sed -n "s|.*, \($at\) samples/s; .*|samples_per_s=\1|p; s|^step \($at\) ms$|step_ms=\1|p
    s|^\($at\) tokens/s, .*|tokens_per_s=\1|p" "$work/output") \
    $(sed -n "s|.*; products \($at\) of \($at\) GFLOP/s: \($at\) %.*|products_gflops=\1 ceiling_gflops=\2 of_ceiling_percent=\3|p" "$work/output") \
    $(sed -n "s|^peak memory of tensors \($at\) GB$|tensors_gb=\1|p" "$work/output")
}

stage_benchmarks() {
  if [ -n "$quick" ]; then
    benchmark kernels 60 device_kernels --tokens 512 --milliseconds 5 --parameters 1000000 --copy_mib 64
    step_speed tiny bf16 32 128 5
    return
  fi
  benchmark kernels-base 100 device_kernels
  benchmark kernels-large 100 device_kernels --hidden 1024 --tokens 16384 --parameters 335000000
  step_speed base bf16 32 128 100
  step_speed base no 32 128 30
  step_speed base fp16 32 128 100
  step_speed base bf16 32 512 40
  step_speed large bf16 32 512 20
  # The same with attention of cuDNN's.
  environment+=(LATHE_ATTENTION=cudnn)
  step_speed base bf16 32 512 40 cudnn
  step_speed large bf16 32 512 20 cudnn
  unset 'environment[-1]'
}

stage_speed() {
  if [ -z "$has_gpu" ]; then
    record skipped speed 0 "no usable GPU here"
    return
  fi
  stage_benchmarks
  peer=$(find_data peers/hf_finetune.py)
  if [ -z "$peer" ]; then
    record skipped "the peer's speed" 0 "no peers/hf_finetune.py"
  else
    run 120 python3 -c 'import torch, transformers, accelerate; print(torch.__version__, transformers.__version__, torch.cuda.is_available())'
    if [ $rc -eq 0 ] && grep -q True "$work/output"; then
      fact peer "PyTorch and Transformers $(last_lines 1)"
    else
      record skipped "the peer's speed" 0 "no python3 with torch that sees a GPU, transformers and accelerate: $(last_lines 1)"
      peer=''
    fi
  fi
  # case, config, file, length, batch, steps before the clock starts, steps
  local cases=(
    'base-sst2-32 base train 128 32 30 200' 'base-512-32 base long 512 32 15 60'
    'large-512-32 large long 512 32 10 40' 'large-sst2-32 large train 128 32 30 120'
    'base-sst2-256 base train 128 256 30 60' 'base-512-256 base long 512 256 6 20'
    'large-sst2-256 large train 128 256 15 40' 'large-512-256 large long 512 256 4 12'
  )
  [ -z "$quick" ] || cases=('tiny-sst2-32 tiny train 128 32 5 10')
  local line case shape file length batch warm steps arguments round
  for line in "${cases[@]}"; do
    read -r case shape file length batch warm steps <<<"$line"
    if [ "$(time_left)" -lt 20 ]; then
      record skipped "$case" 0 "no time left"
      continue
    fi
    arguments=("$work/$shape" "$work/$file.tsv" "$length" "$batch" "$warm" "$steps")
    # In turn, so that a GPU that gets slower is slower for both.
    lathe_speed "$case" "${arguments[@]}"
    if [ "$case" = base-sst2-32 ]; then
      lathe_speed "$case" "${arguments[@]}" --no_cuda_graphs
      lathe_speed "$case" "${arguments[@]}" --deterministic
    fi
    [ -n "$peer" ] || continue
    # Large batches in float32 are slow, and come last.
    [ "$batch" -ne 32 ] || peer_speed "$case" "peer, default" "${arguments[@]}"
    peer_speed "$case" "peer, default in bf16" "${arguments[@]}" --precision bf16
    peer_speed "$case" "peer, grouped and fused AdamW" "${arguments[@]}" --precision bf16 --group_by_length --fused_adamw
    lathe_speed "$case" "${arguments[@]}"
    [ "$batch" -ne 32 ] || compiled_peer_speed "$case" "${arguments[@]}"
  done
  # Compiling takes minutes, so the large batches come last.
  for line in "${cases[@]}"; do
    read -r case shape file length batch warm steps <<<"$line"
    [ "$batch" -ne 32 ] && [ -n "$peer" ] || continue
    arguments=("$work/$shape" "$work/$file.tsv" "$length" "$batch" "$warm" "$steps")
    if [ "$(time_left)" -lt 20 ]; then
      record skipped "$case, peer, default" 0 "no time left"
    else
      peer_speed "$case" "peer, default" "${arguments[@]}"
    fi
    compiled_peer_speed "$case" "${arguments[@]}"
  done
  record passed speed 0 "$(grep -c '^metric' "$work/metrics") measurements; they are no tests"
}
