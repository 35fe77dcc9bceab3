# The stage "speed" of tools/gpu_check.sh, which sources this file. It measures training steps alone, whole
# trainings of Lathe and of a peer in turn, and kernels alone.

# run_watching_memory COMMAND...: runs the command and watches the device's memory in use. Sets peak: the most
# MiB above what was in use before, or "" if there is no nvidia-smi.
run_watching_memory() {
  local before watcher i
  peak=''
  if [ -z "$has_smi" ]; then
    "$@"
    return
  fi
  before=$(nvidia-smi -i 0 --query-gpu=memory.used --format=csv,noheader,nounits)
  rm -f "$work/memory"
  nvidia-smi -i 0 --query-gpu=memory.used --format=csv,noheader,nounits -lms 100 >"$work/memory" 2>/dev/null &
  watcher=$!
  # Before nvidia-smi runs, the watcher is a copy of this shell, which catches the signal that is to end it.
  for ((i = 0; i < 50; ++i)); do
    [ ! -s "$work/memory" ] && kill -0 "$watcher" 2>/dev/null || break
    sleep 0.1
  done
  "$@"
  kill "$watcher" 2>/dev/null
  wait "$watcher" 2>/dev/null
  peak=$(awk -v b="$before" '$1 + 0 > m { m = $1 } END { print m - b }' "$work/memory")
}

# lathe_speed CASE CONFIG FILE LENGTH BATCH WARM STEPS [OPTIONS...]: measures the last STEPS steps of a
# training. It makes a run of WARM steps and one of WARM + STEPS, and takes the difference of their times.
lathe_speed() {
  local case=$1 system='Lathe' common steps seconds=() samples=()
  [ $# -le 7 ] || system="Lathe ${*:8}"
  common=(--device cuda --bf16 --train_file "$3" --max_seq_length "$4" --per_device_train_batch_size "$5" --seed 1 "${@:8}")
  for steps in "$6" $(($6 + $7)); do
    run_watching_memory finetune 150 "$work/speed" "$2" "${common[@]}" --max_steps "$steps"
    if [ $rc -ne 0 ]; then
      if grep -q 'out of memory' "$work/output" && [ $rc -ne 124 ]; then
        record skipped "$case, $system" "$took" "not enough memory: $(last_lines 2)"
      elif [ $rc -eq 124 ] && [ "$(time_left)" -le 1 ]; then
        record skipped "$case, $system" "$took" "no time left"
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
    "first_step_s=$(number time_to_first_step "$work/speed/train_results.json")" ${peak:+"memory_mib=$peak"} "took_s=$took"
}

# run_peer LIMIT COMMAND...: like run, but without the environment of Lathe's programs: the peer has libraries
# of its own.
run_peer() {
  local environment=(LC_ALL=C HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=true)
  run "$@"
}

# peer_speed CASE SYSTEM CONFIG FILE LENGTH BATCH WARM STEPS OPTIONS...: measures the peer, in float32 unless
# the options say otherwise.
peer_speed() {
  local case=$1 system=$2 config=$3 file=$4 length=$5 batch=$6 warm=$7 steps=$8
  shift 8
  run_watching_memory run_peer 200 python3 "$peer" --model "$config" --from_config --train "$file" --max_length "$length" \
    --batch_size "$batch" --warm "$warm" --max_steps $((warm + steps)) "$@"
  grep '^{"' "$work/output" | tail -n 1 >"$work/peer.json"
  if [ $rc -ne 0 ] || [ ! -s "$work/peer.json" ]; then
    record skipped "$case, $system" "$took" "exit code $rc: $(last_lines 2)"
    return 1
  fi
  metric "$case" "$system" "samples_per_s=$(number samples_per_s "$work/peer.json")" \
    "step_ms=$(awk -v s="$(number seconds "$work/peer.json")" -v n="$steps" 'BEGIN { printf "%.2f", 1000 * s / n }')" \
    "first_step_s=$(number first_step_s "$work/peer.json")" ${peak:+"memory_mib=$peak"} "took_s=$took"
}

# compiled_peer_speed CASE CONFIG FILE LENGTH BATCH WARM STEPS: measures the compiled peer, but not with
# --quick.
compiled_peer_speed() {
  local case=$1 system="peer, grouped, fused AdamW and compiled"
  shift
  [ -z "$quick" ] && [[ $case =~ $only ]] || return 0
  if [ "$(time_left)" -lt 200 ]; then
    record skipped "$case, $system" 0 "no time left"
    left_out=1
    return
  fi
  peer_speed "$case" "$system" "$@" --precision bf16 --group_by_length --fused_adamw --compile
}

# benchmark NAME LIMIT PROGRAM ARGUMENTS...: runs a benchmark, whose lines go into the report.
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
  elif [ $rc -eq 124 ] && [ "$(time_left)" -le 1 ]; then
    record skipped "$name" "$took" "no time left"
  elif grep -qi 'out of memory' "$work/output"; then
    record skipped "$name" "$took" "not enough memory: $(last_lines 1)"
  else
    record failed "$name" "$took" "exit code $rc: $(last_lines)"
  fi
  return $rc
}

# step_speed CASE SIZE PRECISION BATCH LENGTH STEPS [SYSTEM]: measures training steps without a loader. It
# also tells what share of the products' ceiling, measured in the same run, they reach. LENGTH 0 means about
# SST-2's lengths.
step_speed() {
  local case=$1 system=${7:-Lathe, steps alone} length=() at='[0-9.]\+'
  [ "$5" = 0 ] || length=(--length "$5")
  benchmark "$case, $system" 100 training_step --size "$2" --precision "$3" --batch "$4" "${length[@]}" --steps "$6" || return
  # shellcheck disable=SC2046
  metric "$case" "$system" $(sed -n "s|^\($at\) tokens/s, \($at\) samples/s; .*|samples_per_s=\2 tokens_per_s=\1|p; s|^step \($at\) ms$|step_ms=\1|p" "$work/output") \
    $(sed -n "s|.*; products \($at\) of \($at\) GFLOP/s: \($at\) %.*|products_gflops=\1 ceiling_gflops=\2 of_ceiling_percent=\3|p" "$work/output") \
    $(sed -n "s|^peak memory of tensors \($at\) GB$|tensors_gb=\1|p" "$work/output")
}

# in_time CASE[, WHAT]: true if the case is wanted (--only) and there is time. If time is short, sets
# left_out, so that the stage says so once in the end.
left_out=''
in_time() {
  [[ ${1%%,*} =~ $only ]] || return 1
  [ "$(time_left)" -lt 20 ] || return 0
  record skipped "$1" 0 "no time left"
  left_out=1
  return 1
}

# Measures the share of the products' ceiling that steps reach in each of the cases.
stage_steps() {
  if [ -n "$quick" ]; then
    step_speed tiny-sst2-32 tiny bf16 32 0 5
    return
  fi
  # case, size, batch, length, steps
  local line case size batch length steps
  for line in 'large-512-32 large 32 512 20' 'base-sst2-32 base 32 0 100' 'large-sst2-32 large 32 0 60' 'base-512-32 base 32 512 40' \
    'base-sst2-256 base 256 0 40' 'large-sst2-256 large 256 0 20' 'base-512-256 base 256 512 8' 'large-512-256 large 256 512 5'; do
    read -r case size batch length steps <<<"$line"
    in_time "$case, Lathe, steps alone" && step_speed "$case" "$size" bf16 "$batch" "$length" "$steps"
  done
}

# Measures kernels alone, and steps in other precisions and with cuDNN's attention.
stage_benchmarks() {
  if [ -n "$quick" ]; then
    benchmark kernels 60 device_kernels --tokens 512 --milliseconds 5 --parameters 1000000 --copy_mib 64
    return
  fi
  in_time kernels-base && benchmark kernels-base 100 device_kernels
  in_time kernels-large && benchmark kernels-large 100 device_kernels --hidden 1024 --tokens 16384 --parameters 335000000
  environment+=(LATHE_ATTENTION=cudnn)
  local with="Lathe, steps alone, attention of cuDNN's"
  in_time "large-512-32, $with" && step_speed large-512-32 large bf16 32 512 20 "$with"
  in_time "base-512-32, $with" && step_speed base-512-32 base bf16 32 512 40 "$with"
  unset 'environment[-1]'
  in_time base-128-32-fp16 && step_speed base-128-32-fp16 base fp16 32 128 100
  in_time base-128-32-f32 && step_speed base-128-32-f32 base no 32 128 30
}

find_peer() {
  peer=$(find_data peers/hf_finetune.py)
  if [ -z "$peer" ]; then
    record skipped "the peer's speed" 0 "no peers/hf_finetune.py"
    return
  fi
  run_peer 200 python3 -c 'import torch, transformers, accelerate; print(torch.__version__, transformers.__version__, torch.cuda.is_available())'
  if [ $rc -eq 0 ] && grep -q True "$work/output"; then
    fact peer "PyTorch and Transformers $(last_lines 1)"
  else
    record skipped "the peer's speed" 0 "no python3 with torch that sees a GPU, transformers and accelerate: $(last_lines 1)"
    peer=''
  fi
}

# The most telling cases come first, so that little is lost if time runs out.
stage_speed() {
  if [ -z "$has_gpu" ]; then
    record skipped speed 0 "no usable GPU here"
    return
  fi
  stage_steps
  find_peer
  # case, config, file, length, batch, steps before the clock starts, steps
  local cases=(
    'base-sst2-32 base train 128 32 30 200' 'large-512-32 large long 512 32 10 40'
    'large-sst2-32 large train 128 32 30 120' 'base-512-32 base long 512 32 15 60'
    'base-sst2-256 base train 128 256 30 60' 'large-sst2-256 large train 128 256 15 40'
    'base-512-256 base long 512 256 6 20' 'large-512-256 large long 512 256 4 12'
  )
  [ -z "$quick" ] || cases=('tiny-sst2-32 tiny train 128 32 5 10')
  local line case shape file length batch warm steps arguments
  for line in "${cases[@]}"; do
    read -r case shape file length batch warm steps <<<"$line"
    in_time "$case" || continue
    arguments=("$work/$shape" "$work/$file.tsv" "$length" "$batch" "$warm" "$steps")
    # Lathe and the peer run in turn, so that a GPU that gets slower is slower for both.
    lathe_speed "$case" "${arguments[@]}"
    [ -n "$peer" ] || continue
    peer_speed "$case" "peer, grouped and fused AdamW" "${arguments[@]}" --precision bf16 --group_by_length --fused_adamw
    peer_speed "$case" "peer, default in bf16" "${arguments[@]}" --precision bf16
    # Large batches in float32 are slow, and come last.
    [ "$batch" -ne 32 ] || peer_speed "$case" "peer, default" "${arguments[@]}"
    lathe_speed "$case" "${arguments[@]}"
    [ "$batch" -ne 32 ] || compiled_peer_speed "$case" "${arguments[@]}"
  done
  # Measures what --deterministic costs and what CUDA graphs gain.
  read -r case shape file length batch warm steps <<<"${cases[0]}"
  arguments=("$work/$shape" "$work/$file.tsv" "$length" "$batch" "$warm" "$steps")
  in_time "$case, --deterministic" && lathe_speed "$case" "${arguments[@]}" --deterministic
  in_time "$case, --no_cuda_graphs" && lathe_speed "$case" "${arguments[@]}" --no_cuda_graphs
  stage_benchmarks
  # Compiling takes minutes, so the large batches come last.
  for line in "${cases[@]}"; do
    read -r case shape file length batch warm steps <<<"$line"
    [ "$batch" -ne 32 ] && [ -n "$peer" ] || continue
    arguments=("$work/$shape" "$work/$file.tsv" "$length" "$batch" "$warm" "$steps")
    in_time "$case, peer, default" && peer_speed "$case" "peer, default" "${arguments[@]}"
    compiled_peer_speed "$case" "${arguments[@]}"
  done
  if ! grep -q '^\(metric\|benchmark\)' "$work/metrics"; then
    record failed speed 0 "nothing was measured${only:+: does a case match --only \"$only\"?}"
    return
  fi
  [ -z "$left_out" ] ||
    fact speed "not all of it was measured: a call of its own, with --stages speed --minutes 60, has the time for it"
  record passed speed 0 "$(grep -c '^metric' "$work/metrics") measurements; none can pass or fail"
}
