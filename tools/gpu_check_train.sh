# The stage "train" of tools/gpu_check.sh, which sources this file. It compares short trainings, predictions
# and the program's own test on the GPU with the CPU and with themselves.
#
# With --deterministic a training repeats itself bit for bit. Without it cuBLASLt may choose other algorithms.
# Then losses are compared within a tolerance, and a note says whether the bits are the same.

readonly f32_limit=1e-4 low_limit=2e-2  # of losses, relative
readonly score_limit=1e-4               # of predicted probabilities, absolute

# ended_well NAME: true if the last command succeeded; otherwise records NAME as failed or skipped.
ended_well() {
  [ $rc -ne 0 ] || return 0
  if [ $rc -eq 124 ] && [ "$(time_left)" -le 1 ]; then
    record skipped "$1" "$took" "no time left"
  else
    record failed "$1" "$took" "exit code $rc: $(last_lines 8)"
  fi
  return 1
}

# train TO PRECISION DROPOUT OPTIONS...: trains into $work/TO. If that fails, records it and returns false.
train() {
  local to=$1 precision=$2 dropout=$3
  shift 3
  finetune 240 "$work/$to" "$work/small" --mixed_precision "$precision" \
    --config_overrides "hidden_dropout_prob=$dropout,attention_probs_dropout_prob=$dropout" \
    --train_file "$work/train.tsv" --validation_file "$work/dev.tsv" --do_eval --max_eval_samples 256 \
    --max_train_samples $((32 * train_steps)) --max_steps "$train_steps" --logging_steps 1 --per_device_train_batch_size 32 \
    --seed 1 "$@"
  ended_well "train $to" || return 1
  : >"$work/$to/ended"
  # The losses of a training that skips its steps change little, too.
  local skips
  skips=$(number skipped_steps "$work/$to/train_results.json")
  [ "${skips:-0}" -le $((train_steps / 2)) ] || record failed "train $to: steps" "$took" "$skips of $train_steps steps were skipped"
}
trained() { [ -e "$work/$1/ended" ]; }

# Prints the largest difference between two runs' losses, relative to the first run's. Prints nothing if the
# runs have different numbers of losses.
loss_difference() {
  paste <(losses "$1") <(losses "$2") | awk -F '\t' '
    $1 == "" || $2 == "" { bad = 1; exit }
    { d = ($1 - $2) / $1; if (d < 0) d = -d; if (!(d <= worst)) worst = d }
    END { if (NR > 1 && !bad) printf "%.2e\n", worst }'
}
same_bits() { cmp -s "$work/$1/model.safetensors" "$work/$2/model.safetensors" && [ "$(losses "$work/$1")" = "$(losses "$work/$2")" ]; }

# identical NAME A B: records whether the two trainings gave the same losses and weights.
identical() {
  if same_bits "$2" "$3"; then
    record passed "$1, bit for bit" "$took" "$train_steps steps"
  else
    record failed "$1, bit for bit" "$took" "losses differ by $(loss_difference "$work/$2" "$work/$3")"
  fi
}

# near NAME A B LIMIT [NOTE]: records whether the two trainings' losses differ by at most LIMIT, relative to
# A's.
near() {
  local difference
  difference=$(loss_difference "$work/$2" "$work/$3")
  if awk -v d="$difference" -v l="$4" 'BEGIN { exit !(d != "" && d + 0 <= l + 0) }'; then
    record passed "$1" "$took" "losses of $train_steps steps and an evaluation differ by $difference of them at most${5:+; $5}"
  else
    record failed "$1" "$took" "losses differ by ${difference:-another number of steps}, more than $4; $2: $(losses "$work/$2" | tr '\n' ' ') $3: $(losses "$work/$3" | tr '\n' ' ')"
  fi
}
# near_itself NAME A B LIMIT: does the same as near, with a note on the bits.
near_itself() {
  local bits='the same bits, too'
  same_bits "$2" "$3" || bits='not the same bits, which only --deterministic promises'
  near "$1" "$2" "$3" "$4" "$bits"
}

# train_in PRECISION: trains on the GPU and on the CPU and compares them. Then trains on the GPU in several
# other ways.
train_in() {
  local precision=$1 limit=$low_limit label=${1/#no/f32} name dropout reference
  [ "$precision" != no ] || limit=$f32_limit
  for dropout in 0 0.1; do
    name=$label-dropout-$dropout
    train "$name.cuda" "$precision" $dropout --device cuda
    # In bfloat16, CPUs without AVX512-BF16 are slow. No CPU has float16: the float32 training, which came
    # first, stands in for it.
    reference=$name.cpu
    if [ "$precision" = fp16 ]; then reference=f32-dropout-$dropout.cpu; else train "$reference" "$precision" $dropout --device cpu; fi
    trained "$name.cuda" && trained "$reference" && near "$name: GPU against CPU" "$reference" "$name.cuda" $limit
  done
  name=$label-dropout-0.1
  if train "$name.deterministic" "$precision" 0.1 --device cuda --deterministic; then
    train "$name.again" "$precision" 0.1 --device cuda --deterministic &&
      identical "$name: the same again on cuda with --deterministic" "$name.deterministic" "$name.again"
    train "$name.eager" "$precision" 0.1 --device cuda --deterministic --no_cuda_graphs &&
      identical "$name: the same without CUDA graphs, with --deterministic" "$name.deterministic" "$name.eager"
    trained "$name.cuda" && near_itself "$name: with --deterministic against without" "$name.cuda" "$name.deterministic" $limit
  fi
  name=$label-dropout-0
  if trained "$name.cuda"; then
    train "$name.again" "$precision" 0 --device cuda &&
      near_itself "$name: the same again on cuda" "$name.cuda" "$name.again" $limit
    train "$name.eager" "$precision" 0 --device cuda --no_cuda_graphs &&
      near_itself "$name: the same without CUDA graphs" "$name.cuda" "$name.eager" $limit
  fi
}

# Compares `lathe predict` on the GPU with the CPU: the scores, and the labels except for near ties.
check_predictions() {
  local model=f32-dropout-0.cuda what='lathe predict: GPU against CPU' device difference
  trained $model || return
  awk -F '\t' 'NR > 1 && $1 != "" && n < 128 { print $1; ++n }' "$work/dev.tsv" >"$work/texts"
  for device in cpu cuda; do
    # shellcheck disable=SC2016
    run 120 bash -c 'exec "$@" <"$0"' "$work/texts" "$bin/apps/lathe/lathe" predict "$work/$model" --device $device --all_scores
    ended_well "lathe predict on $device" || return
    grep '^{' "$work/output" >"$work/predicted.$device"
  done
  # Compares the scores of each pair of lines, by their order. Prints "texts largest-difference
  # labels-that-differ".
  difference=$(paste "$work"/predicted.{cpu,cuda} | awk -F '\t' -v limit=$score_limit '
    function scores(line, to,    n, i, parts) {
      if (!sub(/.*"scores":\{/, "", line)) return 0
      n = split(line, parts, ",")
      for (i = 1; i <= n; ++i) { sub(/.*:/, "", parts[i]); to[i] = parts[i] + 0 }
      return n
    }
    function label(line) { sub(/.*"label":/, "", line); sub(/,"score.*/, "", line); return line }
    {
      n = scores($1, a)
      if (n == 0 || scores($2, b) != n) { bad = 1; exit }
      first = second = 0
      for (i = 1; i <= n; ++i) {
        d = a[i] - b[i]; if (d < 0) d = -d
        if (!(d <= worst)) worst = d
        if (a[i] > first) { second = first; first = a[i] } else if (a[i] > second) second = a[i]
      }
      if (label($1) != label($2) && first - second > 2 * limit) ++others
    }
    END { if (NR > 0 && !bad) printf "%d %.2e %d", NR, worst, others }')
  if [ "${difference%% *}" != "$(wc -l <"$work/texts")" ]; then
    record failed "$what" "$took" "lathe predict did not print scores for each of $(wc -l <"$work/texts") texts"
  elif awk -v d="$difference" -v l=$score_limit 'BEGIN { split(d, x, " "); exit !(x[2] <= l + 0 && x[3] == 0) }'; then
    record passed "$what" "$took" "scores of ${difference%% *} texts differ by at most $(cut -d ' ' -f2 <<<"$difference"); labels differ only at near ties"
  else
    record failed "$what" "$took" "scores differ by $(cut -d ' ' -f2 <<<"$difference"), more than $score_limit, or labels: ${difference##* } of ${difference%% *}; first: $(paste -d '|' "$work"/predicted.{cpu,cuda} | awk -F '|' '$1 != $2 { print; exit }')"
  fi
}

# Runs `lathe test`, which compares one process on the GPU with the CPU.
check_self_test() {
  local precision
  for precision in "$@"; do
    run 120 "$bin/apps/lathe/lathe" test --num_processes 1 --mixed_precision "$precision"
    if ended_well "lathe test, $precision"; then
      record passed "lathe test, $precision" "$took" "$(head -n 1 "$work/output")"
    fi
  done
}

# Compares the estimate of `lathe estimate-memory` with the most that a training's tensors took. The estimate
# is not meant to be exact, so only an absurd one fails.
check_estimates() {
  local more estimate peak ratio what
  for more in --no_cuda_graphs '--no_cuda_graphs --gradient_checkpointing' ''; do
    what="lathe estimate-memory, bf16${more:+, $more}"
    # shellcheck disable=SC2086
    finetune 60 "$work/estimated" "$work/small" --device cuda --bf16 --train_file "$work/long.tsv" --max_seq_length 128 \
      --per_device_train_batch_size 32 --max_steps 6 --seed 1 $more
    ended_well "$what" || continue
    peak=$(number peak_device_memory_bytes "$work/estimated/train_results.json")
    # shellcheck disable=SC2086
    run 20 "$bin/apps/lathe/lathe" estimate-memory "$work/small" --device cuda --batch_size 32 --max_seq_length 128 \
      --mixed_precision bf16 ${more#--no_cuda_graphs}
    ended_well "$what" || continue
    estimate=$(awk '$1 == "together" { printf "%d", $2 * ($3 == "GiB" ? 1024 : 1) * 1048576; exit }' "$work/output")
    ratio=$(awk -v p="${peak:-0}" -v e="${estimate:-0}" 'BEGIN { if (p > 0 && e > 0) printf "%.2f", p / e }')
    if awk -v r="$ratio" 'BEGIN { exit !(r != "" && r >= 0.2 && r <= 5) }'; then
      record passed "$what" "$took" "the run took $ratio of the estimate: $peak of $estimate bytes"
    else
      record failed "$what" "$took" "the run took ${peak:-an unknown number of} bytes, the estimate is ${estimate:-unknown}"
    fi
  done
}

# Trains in ways that change nothing, or little.
train_in_other_ways() {
  local name first tuned again
  name=bf16-dropout-0.1
  trained $name.deterministic &&
    train $name.checkpointing bf16 0.1 --device cuda --deterministic --gradient_checkpointing &&
    identical "$name: with --gradient_checkpointing and --deterministic" $name.deterministic $name.checkpointing
  # These trainings have no dropout, whose masks depend on which batch a text is in.
  name=f32-dropout-0
  trained $name.cuda &&
    train $name.accumulated no 0 --device cuda --per_device_train_batch_size 16 --gradient_accumulation_steps 2 &&
    near "$name: 2 batches of 16 in place of 1 of 32" $name.cuda $name.accumulated $f32_limit
  # The second run uses what the first one found.
  name=bf16-dropout-0
  if trained $name.cuda; then
    environment+=(LATHE_TUNE=1 "LATHE_TUNE_CACHE=$work/tuned.json")
    if train $name.tuned bf16 0 --device cuda; then
      near "$name: with LATHE_TUNE=1" $name.cuda $name.tuned $low_limit
      if [ ! -s "$work/tuned.json" ]; then
        record failed "$name: LATHE_TUNE_CACHE" "$took" "no choice was saved in it"
      elif train $name.tuned-again bf16 0 --device cuda; then
        first=$(number time_to_first_step "$work/$name.cuda/train_results.json")
        tuned=$(number time_to_first_step "$work/$name.tuned/train_results.json")
        again=$(number time_to_first_step "$work/$name.tuned-again/train_results.json")
        near "$name: with LATHE_TUNE=1 again" $name.tuned $name.tuned-again $low_limit \
          "first step after $first s untuned, $tuned s tuning, $again s with what was kept"
      fi
    fi
    unset 'environment[-1]' 'environment[-1]'
  fi
  environment+=(LATHE_ATTENTION=cudnn)
  for name in bf16 fp16; do
    first=bf16-dropout-0.cpu
    [ $name = bf16 ] || first=f32-dropout-0.cpu
    trained $first && train $name-dropout-0.cudnn $name 0 --device cuda --log_level debug &&
      near "$name-dropout-0: LATHE_ATTENTION=cudnn on the GPU against the CPU" $first $name-dropout-0.cudnn $low_limit \
        "Lathe's own where: $(sed -n "s/.*attention runs Lathe's own kernels: //p" "$work/output" | sort -u | paste -s -d ';')"
  done
  unset 'environment[-1]'
}

stage_train() {
  local precision precisions=(no bf16)
  if [ -z "$has_gpu" ]; then  # that much shows that the programs work
    record skipped "training on a GPU" 0 "no usable GPU here"
    train f32-dropout-0.1.cpu no 0.1 --device cpu && train f32-dropout-0.1.again no 0.1 --device cpu &&
      identical "f32-dropout-0.1: the same again on cpu" f32-dropout-0.1.cpu f32-dropout-0.1.again
    return
  fi
  env "${environment[@]}" "$bin/apps/finetune/finetune" --help 2>/dev/null | grep -A2 -e '--mixed_precision' | grep -q fp16 && precisions+=(fp16)
  train_in no
  check_predictions
  for precision in "${precisions[@]:1}"; do train_in "$precision"; done
  check_self_test "${precisions[@]}"
  train_in_other_ways
  check_estimates
}
