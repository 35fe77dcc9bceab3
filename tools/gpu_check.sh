#!/usr/bin/env bash
# Checks everything that needs a machine with a GPU; see usage().
set -uo pipefail

usage() {
  cat <<END
Runs all tests that use a GPU, trains on it and compares with the CPU, looks for bad memory accesses and races, and
measures speed. Without a GPU it says what it skips. Exits with 1 if anything failed, else with 0.

Runs from what tools/bundle.sh packed, or from a source tree, which it builds first. It needs no Python, except for the
peer whose speed is compared.

Usage: tools/gpu_check.sh [options]
  --out DIR       folder for results.md, results.json and log.txt (default: gpu_results). The log has all output, cut where
                  it is very long. The files are written before each program, so a check that is killed leaves them
  --minutes N     time for all stages (default: $minutes). Stages run in the order below and say what they left out. Tests
                  get 28 % of the time, train 20, sanitizer 12 and speed 40; each also gets what earlier ones left. All
                  of speed may take an hour if there is a peer: run \`--stages speed --minutes 60\` by itself. In less
                  time it measures the most telling cases
  --stages LIST   stages to run, from device,tests,train,sanitizer,speed (default: all)
  --only REGEX    measure only the cases of speed that match, such as 'sst2-32$|kernels' (results.md has the names)
  --quick         use tiny models and few steps; run no sanitizer
  --data DIR      folder to look in, besides data/, for golden/models, sst2/{train,dev}.tsv, bert-base-uncased/vocab.txt and
                  peers/hf_finetune.py; may be repeated
END
}

fail() {
  echo "error: $1" >&2
  exit "${2:-1}"
}

minutes=25
stages=device,tests,train,sanitizer,speed
quick=''
only=''
out=gpu_results
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
data=("$root/data")
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --quick) quick=1; shift; continue ;;
    --out | --minutes | --stages | --only | --data) [ $# -ge 2 ] || fail "$1 needs a value" 2 ;;
    *) usage >&2; fail "unknown argument $1" 2 ;;
  esac
  case $1 in
    --out) out=$2 ;;
    --minutes) [[ $2 =~ ^[0-9]+(\.[0-9]+)?$ ]] || fail "--minutes must be a number but is \"$2\"" 2; minutes=$2 ;;
    --stages) stages=$2 ;;
    --only)
      only=$2
      rc=0
      [[ '' =~ $only ]] || rc=$?
      [ $rc -ne 2 ] || fail "--only must be a regular expression but is \"$only\"" 2
      ;;
    --data) data+=("$(realpath -e -- "$2")") || fail "--data $2: no such folder" ;;
  esac
  shift 2
done
for name in ${stages//,/ }; do
  [[ ,device,tests,train,sanitizer,speed, == *",$name,"* ]] || fail "unknown stage $name" 2
done
budget=$(awk -v m="$minutes" 'BEGIN { printf "%d", 60 * m }')

mkdir -p -- "$out" && out=$(realpath -- "$out") || fail "can't write to $out"
work=$(mktemp -d)
: >"$out/log.txt"
: >"$work/records"
: >"$work/metrics"
: >"$work/failures"
: >"$work/facts"

# Writes the results. Each file is complete at any moment.
report() {
  local form
  for form in json md; do
    running=$running awk -f "$root/tools/gpu_check_report.awk" -v form=$form "$work"/{facts,records,failures,metrics} >"$work/page" &&
      cp "$work/page" "$out/results.$form.part" && mv "$out/results.$form.part" "$out/results.$form"
  done
}
trap 'rm -rf "$work"' EXIT
running=''
# Called on a signal: reports what is known so far.
stop() {
  # shellcheck disable=SC2046
  kill $(jobs -p) 2>/dev/null
  record failed "the check itself" 0 "stopped after $SECONDS s${running:+, in: ${running:0:300}}"
  fact took "$SECONDS s"
  report
  exit 1
}
trap stop INT TERM HUP

# These functions note a result:
#   fact NAME VALUE
#   record passed|failed|skipped NAME SECONDS DETAIL
#   metric CASE SYSTEM KEY=VALUE...
clean() { tr -s '\t\n' '  ' <<<"$1" | sed 's/ *$//'; }
fact() {
  printf 'fact\t%s\t%s\n' "$1" "$(clean "$2")" >>"$work/facts"
  printf '%-10s %s\n' "$1" "$(clean "$2")"
}
stage=start
record() {
  printf 'record\t%s\t%s\t%s\t%s\t%s\n' "$stage" "$1" "$2" "$3" "$(clean "$4")" >>"$work/records"
  printf '%-8s %s  (%s s)  %s\n' "$1" "$2" "$3" "$(clean "$4")"
}
metric() {
  local case=$1 system=$2
  shift 2
  (IFS=$'\t'; printf 'metric\t%s\t%s\t%s\n' "$case" "$system" "$*") >>"$work/metrics"
  printf '         %s, %s: %s\n' "$case" "$system" "$*"
}

# begin STAGE: true if the stage is wanted and there is time. The stage then has all remaining time, except
# for the shares of the wanted stages after it.
readonly shares=(tests 28 train 20 sanitizer 12 speed 40)
begin() {
  local i after='' reserved=0
  [[ ,$stages, == *",$1,"* ]] || return 1
  stage=$1
  for ((i = 0; i < ${#shares[@]}; i += 2)); do
    [ -z "$after" ] || [[ ,$stages, != *",${shares[i]},"* ]] || reserved=$((reserved + shares[i + 1]))
    [ "${shares[i]}" != "$1" ] || after=1
  done
  stage_end=$((budget * (100 - reserved) / 100))
  printf '\n== %s  (%d s so far)\n' "$stage" "$SECONDS"
  [ $((stage_end - SECONDS)) -ge 2 ] && return 0
  record skipped "$stage" 0 "no time left"
  return 1
}
time_left() { echo $((stage_end - SECONDS)); }

# Prints the seconds since $EPOCHREALTIME was $1.
since() { awk -v a="${1/,/.}" -v b="${EPOCHREALTIME/,/.}" 'BEGIN { printf "%.1f", b - a }'; }

# Prints a program's output for the log: all of it, or its first and last bytes. These are few once the log is
# long.
log_output() {
  local most=100000 size
  size=$(wc -c <"$work/output")
  [ "$(wc -c <"$out/log.txt")" -lt 8000000 ] || most=2000
  printf '\n==== %s: %s\n' "$stage" "$*"
  if [ "$size" -le $((2 * most)) ]; then
    cat "$work/output"
  else
    head -c $most "$work/output"
    printf '\n==== %s bytes are left out here ====\n' $((size - 2 * most))
    tail -c $most "$work/output"
  fi
  echo "==== exit code $rc, $took s"
}

# run LIMIT COMMAND...: runs the command. Its output goes to $work/output and to the log. Sets rc (124: too
# slow) and took.
run() {
  local limit=$1 begun=$EPOCHREALTIME
  shift
  running=$*
  report  # the check may be killed in the middle of the command
  [ "$limit" -le "$(time_left)" ] || limit=$(time_left)
  rc=124
  : >"$work/output"
  if [ "$limit" -gt 0 ]; then
    # Runs in the background, so that a signal to the check is handled at once, not when the command ends.
    timeout -k 10 "$limit" env "${environment[@]}" "$@" >"$work/output" 2>&1 </dev/null &
    wait $!
    rc=$?
  fi
  running=''
  [ $rc -ne 137 ] || rc=124
  took=$(since "$begun")
  log_output "$@" >>"$out/log.txt"
}
last_lines() { grep -v '^ *$' "$work/output" | tail -n "${1:-3}" | cut -c1-300; }

# Prints the first DIR/NAME that exists in the data folders; nothing if there is none.
find_data() {
  local folder
  for folder in "${data[@]}"; do
    [ -e "$folder/$1" ] && { echo "$folder/$1"; return; }
  done
}

environment=(LC_ALL=C)
if [ -f "$root/MANIFEST" ]; then
  bin=$root/bin
  mapfile -t programs < <(sed -n 's/^program //p' "$root/MANIFEST")
else
  bin=$root/bazel-bin
  mapfile -t targets < <("$root/tools/bundle.sh" --targets)
  (cd "$root" && bazel build --color=no --noshow_progress "${targets[@]}") || fail "the build failed; its messages are above"
  programs=("${targets[@]#//}")
  programs=("${programs[@]/://}")
fi
cd "$root" || exit 1

# config DIR HIDDEN LAYERS HEADS: writes the configuration of a model of that shape, and its vocabulary.
config() {
  mkdir -p "$1"
  local vocab
  vocab=$(find_data bert-base-uncased/vocab.txt)
  if [ -n "$vocab" ]; then
    cp "$vocab" "$1/vocab.txt"
  else
    { printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]'; printf '%s\n' {a..z} '##'{a..z}; } >"$1/vocab.txt"
  fi
  cat >"$1/config.json" <<END
{"architectures": ["BertForSequenceClassification"], "model_type": "bert", "vocab_size": $(wc -l <"$1/vocab.txt"),
 "hidden_size": $2, "num_hidden_layers": $3, "num_attention_heads": $4, "intermediate_size": $((4 * $2)),
 "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02,
 "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "type_vocab_size": 2, "pad_token_id": 0}
END
}

# Makes texts for training: SST-2 if it is there, else letters. Also makes texts of at least 512 tokens.
make_data() {
  local sst2
  sst2=$(find_data sst2/train.tsv)
  if [ -n "$sst2" ]; then
    cp "${sst2%/*}"/{train,dev}.tsv "$work/" || return
  else
    fact data "no sst2/ there: texts of random letters"
    for part in train dev; do
      awk -v n=640 -v seed=${#part} 'BEGIN {
        srand(seed); print "sentence\tlabel"
        for (i = 0; i < n; ++i) {
          text = ""; label = i % 2; words = 3 + int(40 * rand() * rand())
          for (w = 0; w < words; ++w) text = text sprintf("%c ", 97 + int((label ? 26 : 20) * rand()))
          print text "\t" label
        } }' >"$work/$part.tsv"
    done
  fi
  awk -F '\t' 'NR == 1 { print; next } { text = text " " $1; words += split($1, unused, " ") }
    words >= 600 { print substr(text, 2) "\t" NR % 2; text = ""; words = 0; ++n }
    END { exit n == 0 }' "$work/train.tsv" >"$work/some_long.tsv" || return
  # Writes 1,024 long texts. They are repeated, as only their length counts.
  awk 'NR == 1 { print; next } { row[NR - 2] = $0 } END { for (i = 0; i < 1024; ++i) print row[i % (NR - 1)] }' \
    "$work/some_long.tsv" >"$work/long.tsv"
}

# finetune LIMIT OUT CONFIG OPTIONS...: trains a model of CONFIG's shape into the folder OUT.
finetune() {
  local limit=$1 to=$2 config=$3
  shift 3
  run "$limit" "$bin/apps/finetune/finetune" --config_name "$config" --tokenizer_name "$config" --do_train --disable_tqdm \
    --overwrite_output_dir --output_dir "$to" "$@"
}
losses() { sed -n 's/^ *"\(loss\|eval_loss\)": *\([-0-9.e]*\),*$/\2/p' "$1/trainer_state.json" "$1/eval_results.json"; }
number() { sed -n "s/.*\"$1\": *\([-0-9.e+]*\).*/\1/p" "$2" | head -n 1; }

sanitizer_limit=120
stage_sanitizer() {
  local sanitizer tool what command help='' options own=() worked
  sanitizer=$(PATH=$PATH:${CUDA_PATH:-/usr/local/cuda}/bin command -v compute-sanitizer)
  # The options in `own` select Lathe's kernels. Races in libraries' kernels are not ours, and checking those
  # takes most of the time.
  [ -z "$sanitizer" ] || help=$(timeout 20 "$sanitizer" --help 2>&1)
  if [[ $help == *--kernel-name* ]]; then
    own=(--kernel-name kns=lathe)
  elif [[ $help == *--kernel-regex* ]]; then  # its older name
    own=(--kernel-regex kns=lathe)
  fi
  for what in apps/finetune/finetune tests/golden_models_gpu_test; do
    for tool in memcheck racecheck synccheck; do
      if [ -z "$has_gpu" ] || [ -z "$sanitizer" ]; then
        record skipped "$tool of $what" 0 "$([ -n "$has_gpu" ] && echo 'no compute-sanitizer' || echo 'no usable GPU') here"
        continue
      fi
      command=("$bin/$what")
      [ $what != apps/finetune/finetune ] ||
        command+=(--config_name "$work/tiny" --tokenizer_name "$work/tiny" --do_train --max_steps 3 --bf16 --device cuda
          --train_file "$work/train.tsv" --max_train_samples 64 --output_dir "$work/sanitized" --overwrite_output_dir --disable_tqdm)
      if [ "$(time_left)" -lt 40 ]; then
        record skipped "$tool of $what" 0 "no time left; run it with --stages sanitizer --minutes 15"
        continue
      fi
      # Failed calls of CUDA are not reported: programs ask for what a driver may not have. Other tests check
      # errors.
      options=(--tool $tool --error-exitcode 42 --print-limit 20 --report-api-errors no)
      [ $tool = memcheck ] || options+=("${own[@]}")
      rm -rf "$work/sanitized"
      run $sanitizer_limit "$sanitizer" "${options[@]}" "${command[@]}"
      # The tool also reports no errors if it never started the program.
      worked=''
      [ ! -s "$work/sanitized/train_results.json" ] && ! grep -q '^\[  PASSED  \] [1-9]' "$work/output" || worked=1
      if [ $rc -eq 0 ] && [ -n "$worked" ] && grep -q 'ERROR SUMMARY: 0 errors\|RACECHECK SUMMARY: 0 hazards' "$work/output"; then
        record passed "$tool of $what" "$took" "$([ $tool = memcheck ] || echo "${own[*]}")"
      elif [ $rc -eq 124 ] && [ "$(time_left)" -le 1 ]; then
        record skipped "$tool of $what" "$took" "no time left; run it with --stages sanitizer --minutes 15"
      elif [ $rc -eq 124 ]; then
        record failed "$tool of $what" "$took" "timed out; found so far: $(grep -c '=========     at ' "$work/output") places"
      elif grep -qi 'device not supported\|failed to initialize' "$work/output"; then
        record skipped "$tool of $what" "$took" "the tool can't be used here: $(grep -i -m 1 'not supported\|failed to initialize' "$work/output")"
      else
        record failed "$tool of $what" "$took" "exit code $rc$([ -n "$worked" ] || echo ', and the program did not do its work'): $(grep -m 12 '^=========' "$work/output" | cut -c1-200)"
      fi
    done
  done
}

for part in device tests train speed; do
  # shellcheck source=/dev/null
  source "$root/tools/gpu_check_$part.sh"
done

train_steps=20
fact started "$(date -u '+%Y-%m-%d %H:%M:%S') UTC"
printf '\n== device\n'
stage_device
make_data || record failed data 0 "train.tsv and dev.tsv in $(find_data sst2) give no texts"
config "$work/tiny" 64 2 2
config "$work/base" 768 12 12
config "$work/large" 1024 24 16
if [ -n "$quick" ] || [ -z "$has_gpu" ]; then
  train_steps=3
  config "$work/small" 64 2 2
else
  config "$work/small" 384 6 12
fi
begin tests && stage_tests
begin train && stage_train
[ -n "$quick" ] || { begin sanitizer && stage_sanitizer; }
begin speed && stage_speed

fact took "$SECONDS s"
report
sed -n '1,/^## All/p' "$out/results.md" | head -n -1
echo "results: $out/results.md, $out/results.json, $out/log.txt"
! cut -f3 "$work/records" | grep -qx failed
