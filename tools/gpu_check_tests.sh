# The stage "tests" of tools/gpu_check.sh, which sources this file. An error may end a test's process, or
# spoil all that comes after it there: CUDA answers every call with it from then on. The other cases then run
# in fresh processes.

readonly program_limit=300 first_limit=200  # seconds: for a program, and for its first process
readonly most_processes=12                  # of one program
readonly most_lines=300                     # of what a failed case says, in the page

# cases_of PROGRAM...: prints the names of its cases, one a line, without disabled ones.
cases_of() {
  run 20 "$@" --gtest_list_tests
  awk '/^[^ ]+\.( |$)/ { suite = $1 } suite != "" && /^  [^ ]/ && (suite $1) !~ /(^|[.\/])DISABLED_/ { print suite $1 }' "$work/output"
}

# one_line FILE: prints the names in FILE on one line.
one_line() { paste -s -d ' ' "$1"; }

# failure PROGRAM CASE TEXT: notes what a failed case said. TEXT is all of it, its lines joined by \036.
failure() {
  # Leaves TEXT out of a page that is too large, which still names all failed cases.
  [ "$(wc -c <"$work/failures")" -lt 4000000 ] || set -- "$1" "$2" "(see log.txt)"
  printf 'failure\t%s\t%s\t%s\n' "$1" "$2" "$3" >>"$work/failures"
  printf '%s: %s\n' "$1" "$2"
  tr '\036' '\n' <<<"$3" | sed 's/^/    /'
}

# failed_program NAME BEGUN PROGRAM...: records a program that failed. The output of its first process, whose
# exit code is rc, is in $work/output. Runs the cases that this process left out.
failed_program() {
  local name=$1 begun=$2 first_rc=$rc until=$((SECONDS - ${took%.*} + program_limit)) processes=1 detail said status case text
  shift 2
  said=$(last_lines)
  text=$(tail -n "$most_lines" "$work/output" | tr '\t\n' ' \036')
  : >"$work/cases"
  : >"$work/all_cases"
  while :; do
    awk -f "$root/tools/gpu_check_cases.awk" -v rc=$rc -v most=$most_lines "$work/output" >"$work/new"
    cat "$work/new" >>"$work/cases"
    [ -s "$work/all_cases" ] || cases_of "$@" >"$work/all_cases"
    cut -f2 "$work/cases" | grep -vxFf - "$work/all_cases" >"$work/missing"
    # If a process has no new result, the next one would have none either.
    [ -s "$work/new" ] && [ -s "$work/missing" ] && [ $processes -lt $most_processes ] &&
      [ $SECONDS -lt $until ] && [ "$(time_left)" -gt 0 ] || break
    ((++processes))
    run $((until - SECONDS)) "$@" --gtest_filter="$(paste -s -d : "$work/missing")"
  done
  count() { cut -f1 "$work/cases" | grep -cxE "$1"; }
  awk -F '\t' '$1 ~ /failed|sticky/ { print $2 } $1 == "open" { print $2 " (the program ended in it)" }
    $1 == "slow" { print $2 " (not done in time)" }' "$work/cases" >"$work/bad"
  detail="exit code $first_rc; $(count passed) passed, $(count 'failed|sticky|open|slow') failed, $(count skipped) skipped"
  [ $first_rc -ne 124 ] || detail="not done in time; last: $(tail -n 1 <<<"$said"); $detail"
  if [ -s "$work/bad" ]; then detail+="; failed: $(paste -s -d , "$work/bad" | sed 's/,/, /g')"; else detail+="; failed: $said"; fi
  [ $processes -eq 1 ] || detail+="; in $processes processes, one after each fault"
  if [ -s "$work/missing" ]; then
    detail+="; NOT RUN: $(one_line "$work/missing")"
  elif [ ! -s "$work/all_cases" ] && [ $first_rc -ne 1 ]; then
    detail+="; its other cases, which it did not list, were NOT RUN"
  fi
  took=$(since "$begun")
  record failed "$name" "$took" "$detail"
  if [ -s "$work/bad" ]; then
    while IFS=$'\t' read -r status case text; do
      case $status in failed | sticky | open | slow) failure "$name" "$case" "$text" ;; esac
    done <"$work/cases"
  else
    failure "$name" "outside of its cases, exit code $first_rc" "$text"
  fi
}

# test_program NAME PROGRAM...: runs a GoogleTest program and records its result. Without a GPU a *_gpu_test
# is skipped at best.
test_program() {
  local name=$1 begun=$EPOCHREALTIME good skipped detail
  shift
  run $first_limit "$@"
  if [ $rc -ne 0 ]; then
    failed_program "$name" "$begun" "$@"
    return
  fi
  total() { sed -n "s/^\[  $1 \+\] \([0-9]\+\) tests\?[.,].*/\1/p" "$work/output" | tail -n 1; }
  good=$(total PASSED) skipped=$(total SKIPPED)
  detail="${good:-0} passed${skipped:+, $skipped skipped}"
  if [ -z "$has_gpu" ] && [[ $name == *_gpu_test ]]; then
    # Cases that passed did so without a GPU, which is not what the program is for.
    record skipped "$name" "$took" "no usable GPU: ${good:-0} cases passed that need none, ${skipped:-0} skipped"
  elif [ "${good:-0}" -eq 0 ] && [ "${skipped:-0}" -gt 0 ]; then
    record skipped "$name" "$took" "$skipped cases: $(sed -n '/: Skipped$/{n;p;q}' "$work/output")"
  else
    record passed "$name" "$took" "$detail"
  fi
}

stage_tests() {
  local program golden saved=("${environment[@]}")
  golden=$(find_data golden/models)
  for program in "${programs[@]}"; do
    case $program in
      *_test) ;;
      *) continue ;;
    esac
    environment=("${saved[@]}")
    case $program in
      *golden_models*) [ -z "$golden" ] || environment+=("LATHE_GOLDEN_DIR=${golden%/models}") ;;
      */cublaslt_library_test) environment+=(LATHE_CUBLASLT=/nowhere/libcublasLt.so.13) ;;
      */cudnn_library_test) environment+=(LATHE_CUDNN=/nowhere/libcudnn.so.9) ;;
    esac
    test_program "$program" "$bin/$program"
  done
  environment=("${saved[@]}")
}
